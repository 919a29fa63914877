-- Opt-in, for PostgreSQL 14 and newer: a turn that an agent saves after its retirement is not stored at all.
--
-- Without this file such a row is stored, hidden from every read, and swept within a minute or so. With it the save
-- does nothing and the agent does not notice. What still gets through, to be swept: a row whose INSERT had begun and
-- was not committed when the retirement was. A push configuration that an agent stores for such a task is not guarded;
-- neither is its number in task_versions, which holds no text.
--
-- 1. Run `a2a-sidecar prepare`, which creates the tombstone tables.
-- 2. Replace public (the schema) and tasks (the task table, also inside the longer names) by yours, and run this file
--    as the owner of the task table, who must be able to read the tombstones. It may be run again, and should be after
--    the agent has created task_events. unguard_postgres.sql takes it away.
BEGIN;
SET LOCAL lock_timeout = '2s';  -- every save would queue behind a CREATE TRIGGER that waits
LOCK TABLE public.tasks_session_tombstones, public.tasks_task_tombstones IN ACCESS SHARE MODE;  -- they can be read

-- SECURITY DEFINER: the agent's role need not read the tombstones, and its saves must not fail for it. For the same
-- reason a tombstone table that is gone, or was taken from the owner, guards nothing.
CREATE OR REPLACE FUNCTION public.tasks_sidecar_guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM public.tasks_session_tombstones WHERE session_id = NEW.context_id)
        OR EXISTS (SELECT FROM public.tasks_task_tombstones WHERE task_id = NEW.id)
    THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
EXCEPTION WHEN undefined_table OR insufficient_privilege THEN
    RETURN NEW;
END
$$;
REVOKE ALL ON FUNCTION public.tasks_sidecar_guard() FROM PUBLIC;

CREATE OR REPLACE TRIGGER tasks_sidecar_guard BEFORE INSERT ON public.tasks
    FOR EACH ROW EXECUTE FUNCTION public.tasks_sidecar_guard();

-- The SDK's clustered store writes an event, with text, after each save and in its transaction. The sweep finds events
-- by their task's row: one without a row would stay for good.
CREATE OR REPLACE FUNCTION public.tasks_sidecar_guard_events() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM public.tasks WHERE id = NEW.task_id) THEN
        RETURN NEW;
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION public.tasks_sidecar_guard_events() FROM PUBLIC;

DO $$
BEGIN
    IF to_regclass('public.task_events') IS NOT NULL THEN
        CREATE OR REPLACE TRIGGER tasks_sidecar_guard BEFORE INSERT ON public.task_events
            FOR EACH ROW EXECUTE FUNCTION public.tasks_sidecar_guard_events();
    END IF;
END
$$;
COMMIT;
