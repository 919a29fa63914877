#!/bin/sh
# Makes the secrets that the compose files mount, in this folder, where none of that name is yet.
# Compose mounts them with the owner and mode that they have here: run it as root, and each is its reader's alone.
set -eu
cd "$(dirname "$0")"
umask 077

make() {
    [ -s "$1" ] || printf '%s\n' "$2" > "$1"
}

# assigned first: a failure inside an argument would end nothing, and the secret would be empty
secret=$(openssl rand -hex 32)
make operator.token "$secret"
for role in postgres agent sidecar; do
    secret=$(openssl rand -hex 24)
    make "$role.password" "$secret"
done
make agent.pgpass "postgres:5432:agent:agent:$(cat agent.password)"
make agent.url "postgresql+asyncpg://agent:$(cat agent.password)@postgres/agent"
make sidecar.url "postgresql+asyncpg://a2a_sidecar:$(cat sidecar.password)@postgres/agent"

if [ "$(id -u)" -eq 0 ]; then
    chown 65532 operator.token agent.url sidecar.url  # the user of our image
    chown 999 ./*.password agent.pgpass  # the user of the PostgreSQL image
else
    echo "made for you alone: run it again by sudo, or the containers cannot read them" >&2
fi
