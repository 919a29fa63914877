"""What we take for granted of a2a-sdk, held against its own models and against the databases that it really wrote."""

from typing import Any

import pytest
from a2a.compat.v0_3.types import TaskState as OldTaskState
from a2a.server import models
from a2a.types import TaskState
from sqlalchemy import JSON, DateTime, LargeBinary, String, Text

from sidecar.config import Config
from tests import rig
from tombstones.prepare import index_bodies
from tombstones.state import ACTIVE, FINISHED, PARKED, RUNNING
from tombstones.table import CREATED, REQUIRED_COLUMNS, SDK_SIDE_TABLES, Shape, introspect

MODEL: Any = models.TaskModel.__table__  # SQLAlchemy types it as any clause
COLUMNS = frozenset(MODEL.columns.keys())
OURS = {"rowid", "xmin", "ctid", CREATED}
UNREAD = {"protocol_version", "metadata"}


async def shape_of(store: rig.Store) -> Shape:
    async with store.engine.connect() as connection:
        return await introspect(connection, "tasks")


def kind_of(column: Any) -> type[Any]:
    return next(kind for kind in (JSON, DateTime, LargeBinary, Text, String) if isinstance(column.type, kind))


# --- the models of the SDK that is installed ------------------------------------------------------------------------


async def test_our_columns_are_the_models(store: rig.Store) -> None:
    """The light table has the model's columns, but those that nobody reads, the creation order and row versions."""
    ours = set((await shape_of(store)).tasks.c.keys())
    assert ours - OURS == COLUMNS - UNREAD
    assert set() == OURS & COLUMNS


@pytest.mark.parametrize("kind", ["postgres"])
async def test_our_columns_have_the_models_kinds(store: rig.Store) -> None:
    """Ids and owner are text, last_updated is a time without zone, the cells are JSON, which we take as its text."""
    ours = (await shape_of(store)).tasks.c
    kinds = {name: kind_of(MODEL.c[name]) for name in COLUMNS - UNREAD}
    assert {name: Text if kind is JSON else kind for name, kind in kinds.items()} == {
        name: kind_of(ours[name]) for name in kinds
    }
    assert {"status", "artifacts", "history"} == {name for name, kind in kinds.items() if kind is JSON}
    assert [False, False] == [
        getattr(time.type, "timezone", None) for time in (MODEL.c.last_updated, ours.last_updated)
    ]


def test_required_columns_are_in_every_shape_of_the_table() -> None:
    """What a store must have is what both shapes have and we read; a NULL is expected where the model allows one."""
    assert set(REQUIRED_COLUMNS) == COLUMNS - UNREAD - {"owner", "last_updated", "kind"}
    assert {"id", "context_id", "kind", "status"} == {column.name for column in MODEL.columns if not column.nullable}
    assert ["id"] == [column.name for column in MODEL.primary_key]


def test_every_table_that_keeps_something_of_a_task_is_known() -> None:
    """A deletion clears all tables of the SDK that have a task_id, the versions first, which its writers lock first."""
    beside = {name for name, table in models.Base.metadata.tables.items() if "task_id" in table.columns}
    assert set(SDK_SIDE_TABLES) == beside
    assert models.TaskVersionModel.__tablename__ == SDK_SIDE_TABLES[0]
    named = {models.TaskVersionModel, models.TaskEventModel, models.PushNotificationConfigModel}
    assert set(SDK_SIDE_TABLES) == {model.__tablename__ for model in named}


def test_our_table_is_the_one_that_the_sdk_names() -> None:
    """Without any setting the sidecar reads the table that a store without any setting creates."""
    assert MODEL.name == Config().tasks_table


async def test_our_names_do_not_meet_the_sdks(store: rig.Store) -> None:
    """No table or index of ours has the name of one of the SDK's."""
    shape = await shape_of(store)
    ours = {table.name for table in shape.side} | set(index_bodies(shape))
    theirs = set(models.Base.metadata.tables)
    theirs |= {str(index.name) for table in models.Base.metadata.tables.values() for index in table.indexes}
    assert set() == ours & theirs


def test_the_state_vocabulary_is_the_sdks() -> None:
    """Every state of 1.x and of 0.x is either parked, running or finished; only the one that says nothing is none."""
    spelled = set(TaskState.keys()) | {state.value for state in OldTaskState}
    assert PARKED | RUNNING | FINISHED == spelled - {"TASK_STATE_UNSPECIFIED", "unknown"}
    assert len(PARKED) + len(RUNNING) + len(FINISHED) == len(PARKED | RUNNING | FINISHED)
    assert ACTIVE == PARKED | RUNNING


def test_the_finished_states_are_the_sdks_terminal_ones() -> None:
    """What the SDK's clustered store takes for terminal is what we take for finished."""
    from a2a.server.cluster import database_task_store

    terminal = {TaskState.Name(state) for state in database_task_store._TERMINAL_STATES}
    assert terminal == {state for state in FINISHED if state.startswith("TASK_STATE_")}


# --- the tables that SDKs of several versions created ---------------------------------------------------------------

Column = tuple[str, str, bool]
OLD: list[Column] = [
    ("id", "varchar(36)", True),
    ("context_id", "varchar(36)", True),
    ("kind", "varchar(16)", True),
    ("status", "json", True),
    ("artifacts", "json", False),
    ("history", "json", False),
    ("metadata", "json", False),
]
OWNER, UPDATED, VERSION = (
    ("owner", "varchar(255)", False),
    ("last_updated", "timestamp", False),
    ("protocol_version", "varchar(16)", False),
)
NEW = [*OLD[:3], OWNER, UPDATED, *OLD[3:6], VERSION, OLD[6]]
MIGRATED = [*OLD, OWNER, UPDATED, VERSION]
SHAPES = {"0.3.26": OLD, "1.3.0": NEW, "mixed-0.3.26-to-1.3.0": MIGRATED}
INDEXES = {"0.3.26": {"ix_tasks_id"}}
TWO_INDEXES = {"ix_tasks_id", "idx_tasks_owner_last_updated"}

POSTGRES_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull FROM pg_attribute a
    WHERE a.attrelid = 'tasks'::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
POSTGRES_INDEXES = "SELECT indexname FROM pg_indexes WHERE tablename = 'tasks' AND indexname <> 'tasks_pkey'"
SQLITE_INDEXES = "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'tasks' AND sql IS NOT NULL"


async def columns_of(store: rig.Store) -> list[Column]:
    """Name, type and NOT NULL of each column in order; both databases' names of the types are made one."""
    if store.kind == "sqlite":
        rows = await store.raw("SELECT name, type, \"notnull\" FROM pragma_table_info('tasks')")
    else:
        rows = await store.raw(POSTGRES_COLUMNS)
    names = {"character varying": "varchar", " without time zone": "", "datetime": "timestamp"}
    found = []
    for name, kind, required in rows:
        kind = kind.lower()
        for long, short in names.items():
            kind = kind.replace(long, short)
        found.append((name, kind, bool(required)))
    return found


async def indexes_of(store: rig.Store) -> set[str]:
    return {row[0] for row in await store.raw(SQLITE_INDEXES if store.kind == "sqlite" else POSTGRES_INDEXES)}


@pytest.mark.parametrize("name", SHAPES)
async def test_the_tables_are_what_we_were_told(name: str, sdk_database: rig.LoadSdkDatabase) -> None:
    """0.3.26, 1.3.0 and the migration between them made exactly these columns, in this order, and these indexes."""
    store = await sdk_database(name)
    assert SHAPES[name] == await columns_of(store)
    assert INDEXES.get(name, TWO_INDEXES) == await indexes_of(store)


async def test_the_installed_sdk_makes_the_newer_shape(store: rig.Store) -> None:
    """A table that the installed SDK creates is that of 1.3.0: a third shape would be noticed here."""
    assert NEW == await columns_of(store)
    assert TWO_INDEXES == await indexes_of(store)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0.3.26", set()),
        ("1.3.0", {("", "1.0"), ("alice", "1.0")}),
        (
            "mixed-0.3.26-to-1.3.0",
            {("", "1.0"), ("", "0.3"), ("bob", "1.0"), ("legacy_v03_no_user_info", None)},
        ),
    ],
)
async def test_the_values_beside_the_cells(name: str, expected: set[Any], sdk_database: rig.LoadSdkDatabase) -> None:
    """Owner and protocol version, where the table has them, are what each writer and the migration leave there."""
    store = await sdk_database(name)
    if expected:
        assert expected == {tuple(row) for row in await store.raw("SELECT owner, protocol_version FROM tasks")}
    # nothing stored is SQL NULL: an absent list is JSON null or an empty one
    for column in ("artifacts", "history", "metadata"):
        assert [] == await store.raw(f"SELECT id FROM tasks WHERE {column} IS NULL")
