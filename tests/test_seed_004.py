"""The checklist of seed 004: every promise of it, in our words, with the tests that hold it or README's words instead.

It runs none of them: it asks only that each is there.
"""

import pytest

from tests import test_seed_000 as seed_000
from tests.test_seed_000 import Promise

STATES = "`tags` are task states, in either spelling"
FILES = "`filenameContains` and `mimeTypes` look at the parts of the turn's artifacts"
NOT_BUILT = "HyDE, reranking, compression, rewriting, decomposition and graph expansion are not built"
NO_EMBEDDINGS = "There are no embeddings, so a search asks no model"
ONE_WORKSPACE = "There is one workspace and no organization"
MODULE = "in place of the TypeScript SDK"

PROMISES = [
    # --- search
    Promise(
        "`POST /v1/search` answers `{results, sessionId, availability}` and generates nothing",
        "passages::an_answer passages::get_and_post_answer_alike openapi::paths_are_those_of_the_seeds",
    ),
    Promise(
        "passages are portable, with structured citations",
        "passages::a_citation_names_the_characters passages::one_passage_of_a_field passages::half_of_an_emoji",
    ),
    Promise("and with the corpus's availability", "passages::an_answer passages::a_store_without_its_index_yet"),
    Promise(
        "`q` and `workspaceId` are needed",
        "answer_queries::least_query answer_queries::refused_members passages::bad_requests_reach_no_database",
    ),
    Promise(
        "`limit` is a whole number from 1 to 100",
        "answer_queries::parameters answer_queries::refused_members "
        "answer_queries::refused_limits_of_a_query_string openapi::limits_of_a_retrieval_agree_with_its_parser "
        "passages::a_limit",
    ),
    Promise(
        "`q` has at most 16,000 characters",
        "answer_queries::parameters answer_queries::refused_members "
        "passages::a_question_of_16_000_characters_in_a_target passages::many_words_at_once",
    ),
    Promise(
        "filters: `documentId`, `runId`",
        "passages::one_session_or_one_turn passages::what_is_not_there_to_be_searched answer_queries::parameters",
    ),
    Promise("filter `filenameContains`", "passages::files answer_queries::parameters", FILES),
    Promise(
        "comma-separated `tags`",
        "passages::states answer_queries::parameters",
        STATES,
    ),
    Promise("comma-separated `mimeTypes`", "passages::files answer_queries::parameters"),
    Promise(
        "enhancements are off unless asked for",
        "answer_queries::enhancements_that_are_not_built",
        NOT_BUILT,
    ),
    Promise("embeddings of a query may cost", readme=NO_EMBEDDINGS),
    Promise("actual usage is logged and kept", "passages::usage_is_recorded observe::every_event_in_text"),
    # --- batches
    Promise(
        "`POST /v1/search/batch` takes the same inputs",
        "batch::items_answer_as_single_searches answer_queries::batches",
    ),
    Promise("1 to 20 queries", "answer_queries::batches answer_queries::refused_queries batch::the_longest_questions"),
    Promise(
        "`concurrency` is a whole number from 1 to 4, 4 by default",
        "answer_queries::batches answer_queries::refused_concurrency batch::no_more_than_were_asked_for_at_a_time",
    ),
    Promise(
        "the whole envelope is checked before any retrieval, and a wrong one is 400",
        "batch::a_wrong_envelope_runs_nothing answer_queries::every_bad_query_of_a_batch_is_named "
        "answer_queries::an_envelope_takes_no_other_member",
    ),
    Promise(
        "`{results}` in the order of the queries, although they end out of order",
        "batch::order_is_kept_although_they_end_out_of_order batch::items_answer_as_single_searches",
    ),
    Promise(
        "each is `{ok: true, data}` or `{ok: false, error: {code, message, status}}`",
        "batch::items_answer_as_single_searches batch::an_item_fails_by_itself",
    ),
    Promise("200 even when items fail", "batch::an_item_fails_by_itself batch::each_item_checks_the_scope"),
    Promise(
        "every item checks scope and workspace by itself",
        "batch::each_item_checks_the_scope batch::an_item_fails_by_itself batch::owners_narrow_each_item",
        ONE_WORKSPACE,
    ),
    Promise("FORBIDDEN 403", "batch::each_item_checks_the_scope"),
    Promise("WORKSPACE_NOT_FOUND 404 and INVALID_SEARCH_SCOPE 400", "batch::an_item_fails_by_itself"),
    Promise(
        "SEARCH_FAILED 500, of which nothing internal is told",
        "batch::an_unforeseen_fault_is_told_nobody batch::order_is_kept_although_they_end_out_of_order",
    ),
    Promise(
        "a disconnect keeps queued retrievals from starting; those under way end and are recorded",
        "batch::queued_items_never_start_once_the_client_goes batch::a_client_that_has_gone",
    ),
    Promise("what did not start is REQUEST_ABORTED 499", "batch::a_client_that_has_gone"),
    # --- grounded chat
    Promise(
        "`POST /v1/chat`, and `POST /v1/search/chat` with the same checks and answer",
        "chat::an_answer_cites_its_passages chat::the_alias_answers_the_same openapi::paths_are_those_of_the_seeds",
    ),
    Promise(
        "`sessionId` and `model` are not empty and at most 256 characters, all checked before a model is called",
        "chat::every_field_is_checked chat::limits_are_inclusive chat::another_workspace_is_not_found",
    ),
    Promise("an answer, citations and the chat's session id", "chat::an_answer_cites_its_passages"),
    Promise(
        "`GET /v1/search/chat/stream`",
        "chat_stream::an_answer_comes_in_pieces chat_stream::refusals_before_the_first_byte "
        "chat_stream::a_model_that_fails",
    ),
    Promise(
        "`/v1/chat/completions` in JSON and as events",
        "chat_completions::the_official_client chat_completions::the_official_client_streams "
        "chat_completions::chats_are_the_same_by_every_route",
    ),
    Promise("conversations run side by side", "chat::conversations_run_side_by_side"),
    Promise(
        "whose a session is, is verified before it is used again",
        "chat::a_chat_is_its_tokens_own chat_memory::the_next_question_has_what_was_said",
    ),
    Promise("a database that fails fails closed", "chat::a_database_that_fails_fails_closed"),
    # --- who asks
    Promise(
        "all routes ask for the one authenticated actor, and for the permission to search",
        "gate::refusals gate::the_right_scope_opens chat::chats_need_their_scope_and_extra",
    ),
    Promise(
        "keys are scoped to their organization", "passages::owners gate::another_owner_finds_nothing", ONE_WORKSPACE
    ),
    Promise(
        "a batch calls the service directly, without HTTP or credentials",
        "batch::order_is_kept_although_they_end_out_of_order batch::items_answer_as_single_searches",
    ),
    # --- usage
    Promise("searches by GET and POST have `usage`", "passages::an_answer passages::get_and_post_answer_alike"),
    Promise("batches in each item's `data.usage`", "batch::items_answer_as_single_searches"),
    Promise("`workspace.search` and `workspace.search-many` alike", "passages::tools_answer_as_the_routes"),
    Promise(
        "what a provider told and what was estimated can be told apart",
        "chat::usage_is_estimated_where_the_provider_tells_none chat::an_answer_cites_its_passages",
    ),
    Promise("a chat's usage is that of its answer", "chat::an_answer_cites_its_passages"),
    # --- the client
    Promise("`for await` over the hits of a search", "search_module::one_request_however_it_is_read", MODULE),
    Promise(
        "awaited after it, usage and session id without a second request",
        "search_module::one_request_however_it_is_read search_module::nothing_is_sent_before_it_is_asked_for",
    ),
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.says[:40])
def test_promise_is_held(promise: Promise) -> None:
    """Each promise names tests, which are there, or words of README, which stand there."""
    seed_000.test_promise_is_held(promise)
