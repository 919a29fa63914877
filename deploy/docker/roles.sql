-- Run once by the PostgreSQL image, when its volume is empty: the agent's database with its owner, and the sidecar's role.
\set agent_password `cat /run/secrets/agent.password`
\set sidecar_password `cat /run/secrets/sidecar.password`
CREATE ROLE agent LOGIN PASSWORD :'agent_password';
CREATE ROLE a2a_sidecar LOGIN PASSWORD :'sidecar_password';
CREATE DATABASE agent OWNER agent;
