"""The prompts of the self-check."""

import numpy
import pytest
from helpers.token_files import write_token_file
from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.server.prompts import Prompts, choose_prompts

FIRST = [[1, 2, 3, 4, 5, 6], [7, 8, 9], list(range(10, 30))]
SECOND = [list(range(100, 150)), [11, 12]]
COUNT, CHUNK, LIMIT = 8, 32, 1000


@pytest.fixture
def corpus(results: Results) -> Results:
    write_token_file(results, "0000", FIRST)
    write_token_file(results, "0001", SECOND, first_sample_id=3)
    return results


def lists(prompts: Prompts) -> list[list[int]]:
    return [prompt.tolist() for prompt in (prompts.alone, *prompts.together)]


def test_the_prompts_are_the_same_every_time(corpus):
    first = choose_prompts(corpus, 2, COUNT, CHUNK, LIMIT)
    assert lists(first) == lists(choose_prompts(corpus, 2, COUNT, CHUNK, LIMIT))
    assert all(prompt.dtype == numpy.int64 for prompt in (first.alone, *first.together))


def test_each_kind_of_prompt_is_there(corpus):
    prompts = choose_prompts(corpus, 2, COUNT, CHUNK, LIMIT)
    assert 1 + len(prompts.together) == COUNT
    assert prompts.alone.tolist() == FIRST[0]
    single, one, other, over, longest, *_ = [prompt.tolist() for prompt in prompts.together]
    assert single == [1]
    assert one[:3] == other[:3] == [1, 2, 3] and one[3] != other[3]
    assert CHUNK < len(over) < 2 * CHUNK
    assert longest == SECOND[0]


@pytest.mark.parametrize("count", [6, 8, 32])
def test_their_number_is_the_one_asked_for(corpus, count):
    assert len(lists(choose_prompts(corpus, 2, count, CHUNK, LIMIT))) == count


def test_no_prompt_reaches_the_limit(corpus):
    prompts = choose_prompts(corpus, 2, COUNT, 8192, 51)
    assert max(map(len, lists(prompts))) == 50


def test_a_corpus_of_one_token_will_do(results):
    write_token_file(results, "0000", [[5]])
    assert all(set(prompt) == {5} for prompt in lists(choose_prompts(results, 1, COUNT, CHUNK, LIMIT)))


def test_chunks_without_a_sample_are_passed_over(results):
    for chunk in ("0000", "0001", "0002", "0003"):
        write_token_file(results, chunk, [])
    write_token_file(results, "0004", FIRST)
    assert FIRST[2] in lists(choose_prompts(results, 5, COUNT, CHUNK, LIMIT))


def test_a_corpus_without_samples_is_refused(results):
    write_token_file(results, "0000", [])
    with pytest.raises(UserError, match=r"no sample was accepted.*rejected\.parquet"):
        choose_prompts(results, 1, COUNT, CHUNK, LIMIT)


@pytest.mark.parametrize(("limit", "refused"), [(50, True), (51, False)])
def test_a_sample_that_the_server_does_not_take_is_refused(corpus, limit, refused):
    if not refused:
        choose_prompts(corpus, 2, COUNT, CHUNK, limit)
        return
    with pytest.raises(UserError, match=r"50 tokens.*fewer than 50.*conversations\.max_tokens to 49"):
        choose_prompts(corpus, 2, COUNT, CHUNK, limit)
