-- Takes away what guard_postgres.sql made; with the same names in place of public and tasks, as the same role. Late
-- rows are stored again, hidden and swept. It may be run again.
BEGIN;
SET LOCAL lock_timeout = '2s';
DROP FUNCTION IF EXISTS public.tasks_sidecar_guard() CASCADE;  -- with its trigger
DROP FUNCTION IF EXISTS public.tasks_sidecar_guard_events() CASCADE;
COMMIT;
