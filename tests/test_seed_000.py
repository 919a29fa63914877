"""The checklist of seed 000: every promise of it, in our words, with the tests that hold it or README's words instead.

It runs none of them: it asks only that each is there.
"""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent
README = " ".join((TESTS.parent / "README.md").read_text("utf-8").split())

ONE_TASK = "The conversation is the context, and the turn, its variant and its run are the one task."
NO_FORKS = "There are no forks, no archive and no summaries of compacted turns: `inherited` is false"
ALL_SHOWN = "A regenerated answer is a task of its own, and both are shown."
NO_BRANCHES = "`branches` is empty and any `execution_prefix` is not found."
KEPT_WHOLE = "Tasks are kept or deleted whole, so `details_pruned_at` is never sent."


class Promise(NamedTuple):
    """What the seed promises; `tests` as `module::test`, without `test_`; `readme`: what cannot be, told by README."""

    says: str
    tests: str = ""
    readme: str = ""


PROMISES = [
    # --- who reads what
    Promise(
        "only reading, within the caller's workspace and conversations",
        "gate::refusals search_routes::there_is_one_workspace search_routes::paths_that_are_no_route "
        "search::owners_narrow_a_search",
    ),
    Promise(
        "people and agents read by one contract",
        "tools::a_client_lists_and_calls_tools search_queries::tools_and_query_strings_agree_on_searches "
        "search_queries::tools_and_query_strings_agree_on_windows",
    ),
    Promise(
        "deleted, hidden and inaccessible turns are left out before pages are cut",
        "search_pages::pages_are_full_although_much_is_hidden search::what_a_person_did_not_see_is_not_found "
        "store_cases::c05_c06_no_route_shows_a_retired_session store_cases::c05_c06_no_route_shows_a_cleared_turn",
    ),
    Promise("turns inherited by a fork follow the fork's view", readme=NO_FORKS),
    # --- search: parameters
    Promise("the search's path", "openapi::paths_are_those_of_the_seeds search_routes::answers_are_as_published"),
    Promise(
        "`query` is needed, not blank, at most 1,024 bytes",
        "search_queries::searches search_queries::refused_searches search_routes::wrong_parameters_reach_no_database",
    ),
    Promise(
        "`archived`: exclude, include, only",
        "search::archived_and_auxiliary search_queries::refused_searches",
        "`archived=include` changes nothing, `archived=only` finds nothing.",
    ),
    Promise(
        "`include_auxiliary` adds side and subagent conversations",
        "search::archived_and_auxiliary",
        "Side conversations (`include_auxiliary`) are the contexts without the session prefix.",
    ),
    Promise("ordinary forks are included", readme=NO_FORKS),
    Promise(
        "`limit` is 1 to 50, 20 by default",
        "search_queries::searches search_queries::refused_searches openapi::limit_of_the_search_agrees_with_its_parser",
    ),
    Promise(
        "`after` is the page before's `next_after`",
        "search::a_page_is_full_and_the_next_goes_on search::a_cursor_is_bound_to_query_and_filters",
    ),
    # --- search: what is covered
    Promise(
        "titles, prompt, content and steers are searched",
        "search::every_case_of_the_oracle search::a_title_hit_has_no_turn search::interjections_are_found_as_steers",
        "Titles are derived",
    ),
    Promise(
        "of the active variant, in its final state", "search::a_changed_turn_is_found_by_its_new_words_alone", ONE_TASK
    ),
    Promise(
        "reasoning, tool output, execution requests and attachments' bytes are not",
        "search_pages::what_is_no_text_is_not_found search::what_is_no_text_is_not_found",
    ),
    Promise("old candidates are not", readme=ALL_SHOWN),
    Promise("compaction summaries are not", readme=NO_FORKS),
    Promise("a picture without words has no text", "search_pages::a_picture_without_words entries::prompt_and_steers"),
    # --- search: words
    Promise("Chinese is segmented for search", "search::every_case_of_the_oracle words::search_case"),
    Promise(
        "English by PostgreSQL's stems and stop words, case ignored",
        "words_differential::stems words_differential::random_texts search::every_case_of_the_oracle",
    ),
    Promise(
        "punctuation parts words, underscored names go through PostgreSQL's parser",
        "words_differential::random_texts search::every_case_of_the_oracle",
    ),
    Promise("all words within one field", "search::keywords_are_anded_within_one_field"),
    Promise("stop words alone match nothing", "search::a_query_without_lexemes_matches_nothing words::ignored_terms"),
    Promise(
        "too long lexemes are left out, as PostgreSQL does",
        "words_differential::long_words words::long_chinese_lexeme_is_dropped",
        "Words of 2,047 bytes and more are left out, as PostgreSQL itself does.",
    ),
    Promise(
        "a long body is indexed whole, in bounded pieces",
        "search::a_long_body_is_found_by_its_last_word words::hostile_text_costs_what_plain_text_costs",
        "A cell larger than `SIDECAR_MAX_TURN_BYTES` is neither searched nor read",
    ),
    Promise(
        "no ranking, phrases, parts of words, nor words of two fields together",
        "store_cases::c10_words_across_chunks_are_found search::keywords_are_anded_within_one_field",
        "there are no phrases, no parts of words and no ranking",
    ),
    # --- search: order and answer
    Promise(
        "ordered by turn, conversation and field, newest first; a title counts as its conversation",
        "search::a_page_is_full_and_the_next_goes_on search::a_title_hit_has_no_turn",
        "Matches are ordered by creation, newest first, and not by the turn's id, which is random here.",
    ),
    Promise(
        "the cursor is a key and no offset; each page goes by what may be seen then",
        "search_pages::each_page_shows_what_is_visible_then search::a_cursor_is_bound_to_query_and_filters",
    ),
    Promise("a shared prefix comes once for each fork", readme=NO_FORKS),
    Promise("the keys of a match", "search::an_envelope search_routes::answers_are_as_published"),
    Promise("a title hit has no turn, variant, position", "search::a_title_hit_has_no_turn"),
    Promise(
        "an excerpt is original text, at most 500 characters, around what was found",
        "excerpt::excerpt_shows_the_word excerpt::excerpt_is_a_piece search::a_long_body_is_found_by_its_last_word",
    ),
    Promise("an unusual stem falls back to the beginning", "excerpt::excerpt_without_a_place_is_the_beginning"),
    Promise("text is text", "search_pages::text_stays_text search_routes::nobody_keeps_an_answer"),
    Promise("a hit's turn opens the window around it", "history::a_hit_opens_its_window"),
    # --- history: which turns
    Promise("the window's path", "openapi::paths_are_those_of_the_seeds search_routes::ids_come_from_the_raw_path"),
    Promise(
        "`limit` is 1 to 50, 20 by default",
        "search_queries::windows search_queries::refused_windows history::pages_show_each_turn_once",
    ),
    Promise(
        "no anchor is the newest window; else one of around, before and after, both exclusive",
        "history::windows history::windows_have_gaps_where_turns_are_gone search_queries::refused_windows",
    ),
    Promise(
        "a target that is not visible is 404",
        "history::a_target_that_is_not_there_to_be_seen history::a_target_that_became_incognito_unnoticed "
        "history::a_conversation_that_is_not_there_to_be_seen",
    ),
    Promise("ascending positions", "history::windows history::pages_show_each_turn_once"),
    Promise("the keys of the answer", "history::a_turn search_routes::answers_are_as_published"),
    Promise(
        "the keys of a turn, with the texts that it has",
        "history::a_turn history::when_a_turn_was_first_seen history::when_a_turn_was_created",
        "`created_at` is when the sidecar first saw the turn",
    ),
    # --- history: budgets
    Promise(
        "prompt, steers, content; 2,000 characters each, 12,000 a page",
        "history_budgets::text_is_shared_out_in_the_order_of_the_seed budget::take budget::page_of_long_fields",
    ),
    Promise(
        "around: the target first, then its nearest, the newer of two",
        "history_budgets::text_is_shared_out_in_the_order_of_the_seed budget::order",
    ),
    Promise(
        "other windows from the cursor's near edge",
        "history_budgets::text_is_shared_out_in_the_order_of_the_seed budget::order",
    ),
    Promise("rows stay chronological", "history_budgets::text_is_shared_out_in_the_order_of_the_seed history::windows"),
    Promise(
        "flags of turn and page tell of text left out",
        "history_budgets::text_is_shared_out_in_the_order_of_the_seed history::a_cell_that_is_too_large_is_told",
    ),
    Promise(
        "the page's positions and whether there is more on either side",
        "history::windows history::around_and_pages_agree history::windows_have_gaps_where_turns_are_gone",
    ),
    Promise(
        "cursors page turns, not the rest of a long text",
        "history::pages_show_each_turn_once history::a_cursor_stays_right_while_turns_come_and_go",
        "A position is given once and not given again.",
    ),
    # --- history: what may be read
    Promise("archived conversations can be read", readme=NO_FORKS),
    Promise(
        "unfinished turns can be read, their input before their answer", "history::a_running_turn_is_read_as_it_grows"
    ),
    Promise(
        "hidden turns do not appear",
        "history::a_hidden_prompt_is_absent_while_its_answer_is_there history::a_target_that_is_not_there_to_be_seen",
        "Messages that are hidden from the chat give no prompt, while their answers are found; incognito turns are "
        "left out whole.",
    ),
    Promise("compaction summaries do not appear", readme=NO_FORKS),
    Promise("a regeneration does not replace the text until it is selected", readme=ALL_SHOWN),
    # --- execution: parameters
    Promise(
        "`include_execution` adds a snapshot of the target, or of the window's newest turn",
        "history_execution::it_is_of_the_target_or_the_newest_turn_of_the_window",
    ),
    Promise("`execution_before` is the page before's `next_before`", "history_execution::pages_of_rounds"),
    Promise(
        "`execution_prefix` names a delegated branch; without it the main thread is read",
        "history_execution::there_is_no_branch",
        NO_BRANCHES,
    ),
    Promise(
        "null when there is no run, or it may not be read",
        "history_execution::without_a_readable_status_there_is_none",
        ONE_TASK,
    ),
    Promise("a fork's text gives no right to its source's run", readme=NO_FORKS),
    Promise(
        "the caller's restrictions apply",
        "history::a_target_that_is_not_there_to_be_seen search_pages::pages_are_full_although_much_is_hidden",
    ),
    Promise(
        "omitted or false: no key, and selectors without effect",
        "history_execution::without_include_execution_the_key_is_absent search_queries::windows",
    ),
    # --- execution: the snapshot
    Promise("the keys of a snapshot", "history_execution::an_execution_of_the_demos_shape execution::shape"),
    Promise("of the running variant, else the active one; `active` and both states tell which", readme=ONE_TASK),
    Promise("the ids tell a regeneration from the answer before", readme=ALL_SHOWN),
    Promise(
        "`attention_reason` and `failure_reason`",
        "history_execution::why_a_turn_waits_or_failed history_execution::a_question_is_the_reason_of_a_wait",
    ),
    Promise(
        "rounds: keys, states, previews, errors, timing, tool calls with results, unfinished ones too",
        "history_execution::an_execution_of_the_demos_shape history_execution::the_spelling_of_0_3 execution::calls "
        "execution::call_of_the_status_message",
        "no round of an execution has a time",
    ),
    Promise(
        "20 rounds a page, 24 calls a round, and the count of all",
        "history_execution::pages_of_rounds execution::pages execution::a_fan_is_counted_and_bounded",
    ),
    Promise("keys of branches in `branches`", "history_execution::an_execution_of_the_demos_shape", NO_BRANCHES),
    Promise("titles and metadata for the UI are left out", "execution::nothing_hidden_is_shown"),
    Promise(
        "what is stored, not a stream of tokens",
        "history_execution::executions_of_real_sdks history::a_running_turn_is_read_as_it_grows",
    ),
    Promise(
        "the selected turn's text, its previews from the newest, then the neighbours, from one budget",
        "history_budgets::previews_come_after_the_selected_turn execution::budget_goes_to_the_newest",
    ),
    Promise(
        "flags of page and execution; keys, states, counts and cursors remain",
        "history_budgets::previews_come_after_the_selected_turn history_budgets::execution_alone_can_be_truncated "
        "history_execution::a_history_that_is_too_large_is_told",
    ),
    Promise(
        "older rounds: pinned by around, with the cursor",
        "history_execution::pages_of_rounds execution::a_cursor_stays_while_rounds_come",
    ),
    Promise(
        "a wrong cursor is `parameter_invalid`",
        "history_execution::a_cursor_that_was_not_given_out_is_refused execution::a_foreign_cursor_is_refused",
    ),
    Promise("a branch that is not there is `not_found`", "history_execution::there_is_no_branch", NO_BRANCHES),
    Promise("after retention: identities, states and `details_pruned_at`, no rounds", readme=KEPT_WHOLE),
    Promise("the turn's text stays readable", readme=KEPT_WHOLE),
    # --- tools and index
    Promise("`session_search` with the search's parameters", "tools::tools_say_what_they_are"),
    Promise(
        "`session_read` with `session_id` and `around_turn_id`",
        "tools::tools_say_what_they_are tools::faults_are_told_to_the_model",
    ),
    Promise("the same envelopes as text", "tools::a_client_lists_and_calls_tools"),
    Promise(
        "tools read by the caller's own access, and are declared",
        "tools::arguments_and_owners_reach_the_service tools::a_client_without_the_right_token_gets_nowhere "
        "store_cases::c05_c06_no_route_shows_a_retired_session",
    ),
    Promise(
        "new titles and bodies keep the index up",
        "search::a_title_moves_on_with_its_turn search::a_changed_turn_is_found_by_its_new_words_alone",
        "is brought up to date before each search",
    ),
    Promise("retention of details keeps bodies and indexes", readme=KEPT_WHOLE),
]


@cache
def names_in(module: str) -> frozenset[str]:
    """The names of the tests of a module."""
    tree = ast.parse((TESTS / f"test_{module}.py").read_text("utf-8"))
    functions = (each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(each.name for each in functions)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.says[:40])
def test_promise_is_held(promise: Promise) -> None:
    """Each promise names tests, which are there, or words of README, which stand there."""
    named = [test.split("::") for test in promise.tests.split()]
    assert [] == [f"{module}::{name}" for module, name in named if f"test_{name}" not in names_in(module)]
    assert promise.readme in README
    assert named or promise.readme
