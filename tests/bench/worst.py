"""The index where a walk along the newest rows finds little; times only, to be read beside that of the usual store."""

import hashlib
from datetime import timedelta

from tests.bench import servers
from tests.bench.generate import START, Planned, load
from tests.bench.index import asking
from tests.bench.report import Findings
from tests.bench.rounds import SESSIONS, Bench, turns_path
from tests.rig import TOKEN, Store

OLD, NEW = START - timedelta(days=1), START + timedelta(days=365)
RARE, FEW, LONG = "rare", "few-", "chat-long"


async def measure(bench: Bench, store: Store, rows: int, findings: Findings) -> None:
    """Each case adds its rows to a prepared store and is measured at once; those before it stay."""

    async def note(case: str, path: str = SESSIONS, **settings: str) -> None:
        with servers.sidecar(store.url, bench.folder, **settings) as sidecar:
            took = await bench.medians({case: asking(bench, sidecar, path)})
        findings.time(f"worst: {case}", took[case])

    await load(store, (Planned(f"chat-rare-{number % 20}", OLD, owner=RARE) for number in range(200)))
    await note("index of an owner of 20 old sessions", SIDECAR_TOKEN="", SIDECAR_TOKENS_FILE=_token_of(RARE, bench))
    await load(store, (Planned(f"{FEW}{number % 5}", OLD) for number in range(50)))
    await note("index of a prefix with 5 old sessions", SIDECAR_SESSION_PREFIX=FEW)
    turns = rows // 5
    await load(store, (Planned(LONG, NEW + timedelta(seconds=number)) for number in range(turns)))
    await note(f"index behind a session of {turns:,} turns")
    await note(f"the 50 newest of {turns:,} turns", turns_path(LONG))
    await load(
        store, (Planned(f"agent-{number // 10}", NEW + timedelta(days=365, seconds=number)) for number in range(rows))
    )
    await note(f"index behind {rows:,} newer rows outside the prefix")


def _token_of(owner: str, bench: Bench) -> str:
    """A tokens file in which our token reads the rows of one owner."""
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    path = bench.folder / "tokens.toml"
    path.write_text(f'[[token]]\nname = "{owner}"\nsha256 = "{digest}"\nscopes = ["read"]\nowners = ["{owner}"]\n')
    path.chmod(0o600)
    return str(path)
