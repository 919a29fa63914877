-- Opt-in, for SQLite: a turn that an agent saves after its retirement is not stored at all.
--
-- Without this file such a row is stored, hidden from every read, and swept within a minute or so. With it the save
-- does nothing and the agent does not notice. A push configuration that an agent stores for such a task is not guarded.
--
-- 1. Run `a2a-sidecar prepare`, which creates the tombstone tables. Never drop or rename one while this trigger stands:
--    SQLite has no trigger that survives it, and every save of the agent would fail. Run unguard_sqlite.sql first.
-- 2. Replace tasks (the task table, also inside the longer names) by yours, and run this file:
--    sqlite3 agent.db < guard_sqlite.sql. It may be run again. unguard_sqlite.sql takes it away.
PRAGMA busy_timeout = 10000;
BEGIN IMMEDIATE;
DROP TRIGGER IF EXISTS tasks_sidecar_guard;
CREATE TRIGGER tasks_sidecar_guard BEFORE INSERT ON tasks
    WHEN EXISTS (SELECT 1 FROM tasks_session_tombstones WHERE session_id = NEW.context_id)
        OR EXISTS (SELECT 1 FROM tasks_task_tombstones WHERE task_id = NEW.id)
BEGIN
    SELECT RAISE(IGNORE);
END;

-- Where the agent uses the SDK's clustered store: the sweep finds events by their task's row, and one without a row
-- would stay for good. Take the comment marks away.
-- DROP TRIGGER IF EXISTS tasks_sidecar_guard_events;
-- CREATE TRIGGER tasks_sidecar_guard_events BEFORE INSERT ON task_events
--     WHEN NOT EXISTS (SELECT 1 FROM tasks WHERE id = NEW.task_id)
-- BEGIN
--     SELECT RAISE(IGNORE);
-- END;

-- Without both tables nothing must be made: this rolls all of it back then, also in a shell that goes on after errors.
CREATE TEMP TABLE sidecar_tombstone_tables (number INTEGER CHECK (number = 2));
INSERT OR ROLLBACK INTO sidecar_tombstone_tables
    SELECT count(*) FROM sqlite_master WHERE name IN ('tasks_session_tombstones', 'tasks_task_tombstones');
DROP TABLE sidecar_tombstone_tables;
COMMIT;
