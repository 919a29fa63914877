-- The least privileges of the sidecar's database role, for PostgreSQL.
--
-- 1. Run `a2a-sidecar prepare` as the owner of the task table: it creates the tables named below, so that the role
--    needs no CREATE.
-- 2. Replace a2a_sidecar (the role), public (the schema) and tasks (the task table, also inside the longer names) by
--    yours, and run this file as the owner, with psql or anything else. It may be run again.
--
-- CREATE ROLE a2a_sidecar LOGIN PASSWORD '…';
-- GRANT CONNECT ON DATABASE … TO a2a_sidecar;  -- only where CONNECT was taken from PUBLIC

-- Reading: the index, the turns and the summary. A sidecar that never retires needs nothing more.
GRANT USAGE ON SCHEMA public TO a2a_sidecar;
GRANT SELECT ON public.tasks TO a2a_sidecar;
GRANT SELECT ON public.tasks_session_tombstones TO a2a_sidecar;
GRANT SELECT ON public.tasks_task_tombstones TO a2a_sidecar;

-- Retiring, clearing and sweeping. DELETE also lets the role lock the task table; there is no narrower privilege.
GRANT DELETE ON public.tasks TO a2a_sidecar;
GRANT INSERT ON public.tasks_session_tombstones TO a2a_sidecar;
GRANT INSERT ON public.tasks_task_tombstones TO a2a_sidecar;
GRANT SELECT, INSERT ON public.tasks_retirements TO a2a_sidecar;

-- What is kept beside a task and goes with it, where it is: the search index and what chats remember, which `prepare`
-- or a first search made; the versions and events of the SDK's clustered store; push configurations.
-- Run this again after the agent has created one of its tables: until then a retirement is refused.
DO $$
DECLARE
    beside text;
BEGIN
    FOREACH beside IN ARRAY ARRAY[
        'tasks_search_turns', 'tasks_search_contexts', 'tasks_search_lexemes',
        'tasks_answer_exchanges', 'tasks_answer_sources',
        'task_versions', 'task_events', 'push_notification_configs'
    ] LOOP
        IF to_regclass('public.' || beside) IS NOT NULL THEN
            EXECUTE format('GRANT SELECT, DELETE ON public.%I TO a2a_sidecar', beside);
        END IF;
    END LOOP;
END
$$;

-- Searching. A sidecar without the extra `search` needs none of these. `prepare` makes the tables.
GRANT INSERT, UPDATE ON public.tasks_search_turns TO a2a_sidecar;
GRANT INSERT, UPDATE ON public.tasks_search_contexts TO a2a_sidecar;
GRANT INSERT ON public.tasks_search_lexemes TO a2a_sidecar;

-- An agent's own search, whose audit is only ever added to.
GRANT SELECT, INSERT ON public.tasks_conversation_search_events TO a2a_sidecar;

-- Retrieval and grounded chat.
GRANT INSERT ON public.tasks_usage TO a2a_sidecar;
GRANT SELECT, INSERT ON public.tasks_answer_sessions TO a2a_sidecar;
GRANT INSERT ON public.tasks_answer_exchanges TO a2a_sidecar;
GRANT INSERT ON public.tasks_answer_sources TO a2a_sidecar;
