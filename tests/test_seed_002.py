"""The checklist of seed 002: every promise of it, in our words, with the tests that hold it or README's words instead.

It runs none of them: it asks only that each is there.
"""

import pytest

from tests.test_seed_000 import README, Promise, names_in

PERSPECTIVE = "Whose history is searched follows from the token alone"
ACCESS = "Each call reads anew what the token may see: there are no linked identities and no proof that could outlive"
SOURCES = "the ids in an answer are there so that memories and replies can carry their sources."

PROMISES = [
    # --- what for
    Promise(
        "an agent finds what it observed, also outside its recent window",
        "history_search::an_answer_is_as_published history_search::loaded_messages_are_left_out_and_counted",
    ),
    Promise(
        "attributed evidence of transcripts, whether or not a memory was saved",
        "history_search::an_answer_is_as_published history_search::messages_have_stable_ids",
    ),
    Promise("the exchange around a message can be inspected", "history_search::neighbours_are_of_any_speaker_and_time"),
    Promise(
        "only what the audience may receive",
        "history_search::a_token_sees_its_owners_alone history_search::what_may_not_be_seen_is_no_hit_and_no_neighbour",
    ),
    # --- surface
    Promise(
        "the runtime offers it as a tool with query, speaker, since, until and limit",
        "tools::tools_say_what_they_are tools::the_runtime_names_the_run_in_meta",
    ),
    Promise(
        "`speaker`: anyone, requester, you",
        "history_search::speakers history_search::wrong_bodies_reach_no_database",
        "`speaker` is `anyone`, `requester` (prompts and interjections) or `you` (answers).",
    ),
    Promise(
        "times bound the search",
        "history_search::times history_search::wrong_bodies_reach_no_database",
        "`since` is included, `until` is not",
    ),
    Promise(
        "`limit` is 8 by default and 20 at most",
        "history_search::limits history_search::wrong_bodies_reach_no_database "
        "history_search::greatest_bodies_are_taken",
    ),
    Promise(
        "a hit has conversation, time, speaker, text, a stable message id and the reasons of its rank",
        "history_search::an_answer_is_as_published history_search::messages_have_stable_ids "
        "history_search::texts_are_bounded history_search::of_the_steers_the_one_that_fits_best_is_the_hit",
    ),
    Promise(
        "up to two eligible messages on each side",
        "history_search::neighbours_are_of_any_speaker_and_time "
        "history_search::neighbours_beyond_turns_without_a_message",
    ),
    Promise(
        "the current message is left out",
        "history_search::the_current_turn_is_left_out_and_counted tools::the_runtime_names_the_run_in_meta",
    ),
    Promise(
        "recent history that is loaded is left out",
        "history_search::loaded_messages_are_left_out_and_counted tools::the_runtime_names_the_run_in_meta",
    ),
    Promise(
        "a turn of the agent is shown 400 distinct messages at most",
        "search_audit::the_ceiling_is_exact search_audit::what_does_not_fit_is_left_out "
        "search_audit::a_budget_is_of_one_run_of_one_token",
        "A run is shown 400 different messages at most",
    ),
    Promise(
        "at the ceiling `search_budget_exhausted` is told",
        "search_audit::the_ceiling_is_exact search_audit::what_was_shown_is_shown_again",
    ),
    # --- what can be found
    Promise(
        "one agent's perspective alone", "history_search::a_token_sees_its_owners_alone", f"{PERSPECTIVE}; a body that"
    ),
    Promise(
        "the checks of ordinary history apply before anything enters the model's context",
        "history_search::what_may_not_be_seen_is_no_hit_and_no_neighbour "
        "history_search::a_retired_or_cleared_session_is_gone store_cases::c05_c06_no_route_shows_a_retired_session",
    ),
    Promise("linked accounts count as the requester, and broaden no permission", readme=ACCESS),
    Promise("a revoked proof authorizes no reply", "history_search::a_retired_or_cleared_session_is_gone", ACCESS),
    Promise(
        "the model supplies neither an agent's id nor an audience; both come from the run",
        "tools::a_model_cannot_choose_whose_history_it_is history_search::wrong_bodies_reach_no_database "
        "history_search::the_runtime_says_which_run_asks tools::the_run_may_stand_in_the_headers",
    ),
    Promise(
        "neighbours pass the checks of the hit",
        "history_search::what_may_not_be_seen_is_no_hit_and_no_neighbour history_search::a_token_sees_its_owners_alone",
    ),
    # --- retrieval and provenance
    Promise(
        "words are alternatives, and stronger matches rank higher",
        "history_search::words_are_alternatives_and_more_of_them_rank_higher "
        "history_search::words_that_no_index_holds_find_nothing",
    ),
    Promise(
        "actor, conversation, participation and recency help to order",
        "history_search::signals_decide_among_equal_matches history_search::the_current_turn_is_left_out_and_counted",
    ),
    Promise("no semantic search", readme="It is keyword search. Semantic search is not built"),
    Promise(
        "the index is a projection: rights are checked again, and the text is the stored one",
        "history_search::a_saved_turn_is_shown_as_it_is_now history_search::a_retired_or_cleared_session_is_gone",
    ),
    Promise(
        "what was returned stays evidence, so that memories and replies keep their sources' restrictions",
        "history_search::messages_have_stable_ids",
        SOURCES,
    ),
    Promise("results compete for room in the prompt", "history_search::texts_are_bounded"),
    # --- inspection
    Promise(
        "every search writes `conversation_search_events`: keyed digest, filters, ids, ranking, exclusions",
        "search_audit::every_search_leaves_an_event search_audit::a_digest_is_of_the_words_and_the_key "
        "search_audit::the_request_is_named_as_in_its_answer history_search::without_a_key_nothing_is_searched",
    ),
    Promise(
        "a run's trace shows it as `search_audit`",
        "search_audit::every_search_leaves_an_event search_audit::events_are_listed_newest_first_in_pages "
        "search_audit::who_may_inspect search_audit::without_the_scope_nothing_is_inspected "
        "search_audit::limits_of_the_list",
    ),
    Promise("the audit has no text of the query", "search_audit::no_word_of_a_query_is_kept"),
    Promise(
        "a failed audit write fails the search",
        "search_audit::a_full_disk search_audit::an_unforeseen_fault search_audit::a_locked_file grants::recalling",
    ),
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.says[:40])
def test_promise_is_held(promise: Promise) -> None:
    """Each promise names tests, which are there, or words of README, which stand there."""
    named = [test.split("::") for test in promise.tests.split()]
    assert [] == [f"{module}::{name}" for module, name in named if f"test_{name}" not in names_in(module)]
    assert promise.readme in README
    assert named or promise.readme
