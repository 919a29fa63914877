-- Takes away what guard_sqlite.sql made; with the same name in place of tasks. Late rows are stored again, hidden and
-- swept. It may be run again.
PRAGMA busy_timeout = 10000;
DROP TRIGGER IF EXISTS tasks_sidecar_guard;
DROP TRIGGER IF EXISTS tasks_sidecar_guard_events;
