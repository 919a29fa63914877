"""The sample sessions as data: what the operator sends and the steps with which the agent replies; no I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Literal

from a2a.helpers import new_data_part, new_raw_part, new_url_part
from a2a.types import Part

from sidecar.demo.steps import Step, answer, ask, call, sign_in, steer, think, watch


@dataclass(frozen=True)
class Turn:
    """One message of the operator and the agent's reply.

    `left`: how the sample writer leaves it: as the agent ended it, still running, or cancelled while it ran.
    """

    prompt: str
    steps: Sequence[Step]
    metadata: Mapping[str, object] = field(default_factory=dict)
    attachments: Sequence[Part] = ()
    left: Literal["ended", "running", "cancelled"] = "ended"


TRIP = [
    Turn(
        "Plan a long weekend in Lisbon for the team in May.",
        [
            think("Four days, nine people, and two of them do not fly."),
            answer(
                "Thursday: Alfama on foot and the tram 28. ",
                "Friday: Belém, then the workshop by the river. ",
                "Saturday: Sintra by train, 40 minutes each way. ",
                "Sunday: the Gulbenkian gardens, and home.",
            ),
        ],
    ),
    Turn(
        "How do the two who do not fly get there?",
        [
            call("search_trains", "Paris to Lisbon, 7 May", "via Hendaye and Vilar Formoso, 23 h 10"),
            answer("By night train to Hendaye, then through Salamanca: ", "23 hours, one change of gauge."),
        ],
    ),
    Turn(
        "Book the hotel.",
        [
            call("search_hotels", "Lisbon, 7 to 10 May, 9 single rooms", "2 with free rooms"),
            ask("Which hotel shall I book?", hotel=["Casa do Rio", "Hotel da Baixa"], breakfast=["yes", "no"]),
        ],
    ),
]

RESEARCH = [
    Turn(
        "请总结今年人工智能研究的主要进展。",
        [
            think("先看综述，再看智能体与检索方向的论文。"),
            answer(
                "今年人工智能研究有三个重点：",
                "第一，智能体能够长时间执行任务；",
                "第二，检索增强生成更重视出处；",
                "第三，小模型在本地设备上更实用。",
            ),
        ],
    ),
    Turn(
        "智能体的会话记录应该保存多久？",
        [answer("已完成的任务通常保留二十四小时，", "等待回答的任务一直保留，直到操作员删除会话。")],
    ),
    Turn("把结论翻译成英文。", [answer("Agents run longer, answers cite sources, small models run locally.")]),
]

INVOICES = [
    Turn(
        "Compare these three invoices with the contract.",
        [
            think("The link is the contract; the two files are March and April."),
            answer("March and April agree with the contract. ", "May charges 12 seats, the contract says 10."),
        ],
        attachments=[
            new_url_part("https://files.example.com/contract.pdf", "application/pdf", "contract.pdf"),
            new_raw_part(b"item,seats,eur\nplan,10,900\n", "text/csv", "march.csv"),
            new_url_part("data:text/csv;base64,aXRlbSxzZWF0cyxldXIKcGxhbiwxMCw5MDAK", "text/csv", "april.csv"),
            new_data_part({"item": "plan", "seats": 12, "eur": 1080}, "application/json"),
        ],
    ),
    Turn(
        "<document name='may.txt'>12 seats, 1,080 EUR</document>\nWrite to the vendor about May.",
        [answer("Dear vendor, May bills 12 seats where our contract has 10. ", "Please send a corrected one.")],
        metadata={"display": "Write to the vendor about May."},
    ),
]

CANARY = [
    Turn(
        "Roll out checkout 4.2 as a canary.",
        [
            think("Start at 5 percent, watch the error rate, then widen."),
            call("deploy", "checkout 4.2, 5 percent", "3 of 60 pods ready"),
            call("read_metrics", "error rate, 10 minutes", "0.08 percent, was 0.07"),
            steer("Keep it at 25 percent until the Berlin team is awake."),
            call("deploy", "checkout 4.2, 25 percent", "15 of 60 pods ready"),
            answer(
                "Checkout 4.2 runs on 5 percent without new errors. ",
                "As you asked meanwhile, I widened it to 25 percent and stopped there.",
            ),
        ],
    ),
]

REGION = [
    Turn("Move the staging cluster.", [ask("To which region, and when may it be down?")]),
    Turn(
        "To eu-central, tonight at 22:00.",
        [call("schedule", "staging, eu-central, 22:00", "booked"), answer("Booked for 22:00. ", "It takes 15 min.")],
        metadata={"hitl_resume": True},
    ),
]

# sent twice: the agent fails it once
RESTORE = 2 * [
    Turn(
        "Restore the backup of Tuesday, whose check failed, into staging.",
        [answer("Restored: 214 tables, ", "every checksum agrees.")],
    ),
]

BILLING = [
    Turn("Which plan are we on?", [answer("The team plan, 10 seats, until 30 September.")]),
    Turn("Export the bills of this year.", [sign_in("Sign in to the billing portal, then I can export them.")]),
]

HANDOVER = [
    Turn("Summarise the night for the next on-call.", [answer("Two pages, both the same disk. ", "It is replaced.")]),
    Turn("approved: post it", [answer("Posted to #on-call.")], metadata={"hidden": True}),
]

PRIVATE = [
    Turn("What does a fair review look like?", [answer("Specific, recent, and about the work.")]),
    Turn(
        "Help me to prepare a talk about my own salary.",
        [answer("Bring three results of this year ", "and one figure from a public survey.")],
        metadata={"incognito": True},
    ),
]

LOAD_TEST = [Turn("Run the load test for an hour.", [watch("Second {n}: 480 requests, no error.\n")], left="cancelled")]

MIGRATION = [
    Turn(
        "Write the migration plan for the orders table.",
        [answer("The migration plan: ", "copy in batches of 1,000 rows, ", "compare, switch the reads, drop the old.")],
    ),
    Turn(
        "Start it and tell me how it goes.",
        [watch("Batch {n} of 3,600: {n}k rows copied.\n")],
        left="running",
    ),
]

PEOPLE = ["Ana", "Bo", "Chidi", "Dana", "Emre", "Fatou", "Goran"]
WORK = ["the checkout latency", "the audit export", "the on-call rota", "the flaky login test", "the price page"]


def standup(days: int) -> list[Turn]:
    """One short turn a day."""
    pairs = islice(zip(cycle(PEOPLE), cycle(WORK), strict=False), days)
    return [
        Turn(f"Stand-up of day {day}: what moved?", [answer(f"{person} finished {work}. Nothing is blocked.")])
        for day, (person, work) in enumerate(pairs, start=1)
    ]


# Written in this order. The session in flight comes last, so that it does not slow the others down; the two contexts
# without the prefix are no console chats, and the sidecar lists neither.
SESSIONS: dict[str, list[Turn]] = {
    "chat-trip-lisbon": TRIP,
    "chat-研究": RESEARCH,
    "chat-daily-standup": standup(60),
    "chat-invoice-review": INVOICES,
    "chat-deploy-canary": CANARY,
    "chat-staging-region": REGION,
    "chat-backup-restore": RESTORE,
    "chat-billing-export": BILLING,
    "chat-oncall-handover": HANDOVER,
    "chat-review-talk": PRIVATE,
    "chat-load-test": LOAD_TEST,
    "activity-nightly": [
        Turn("nightly: prune images", [answer("Pruned 41 images.")], metadata={"origin": "scheduler"})
    ],
    "api-health": [Turn("ping", [answer("pong")])],
    "chat-migration-watch": MIGRATION,
}

SCRIPT: dict[str, Sequence[Step]] = {turn.prompt: turn.steps for turns in SESSIONS.values() for turn in turns}
