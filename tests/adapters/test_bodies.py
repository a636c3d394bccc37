"""Response bodies of each server, written out as its documentation shows them."""

from __future__ import annotations

from typing import Any

import pytest

from detdiag.evidence.adapters import adapt_response, prompt_token_ids, response_factors
from detdiag.evidence.observation import Candidate, Output, Position

CHAT: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "m-2025",
    "system_fingerprint": "fp_1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi é"},
            "finish_reason": "stop",
            "token_ids": [5, 6],
            "logprobs": {
                "content": [
                    {
                        "token": "Hi",
                        "logprob": -0.25,
                        "bytes": [72, 105],
                        "top_logprobs": [
                            {"token": "Yo", "logprob": -2.0, "bytes": None},
                            {"token": "Hi", "logprob": -0.25, "bytes": [72, 105]},
                            {"token": "no", "logprob": -9999.0, "bytes": None},
                        ],
                    },
                    {
                        "token": "\ufffd",
                        "logprob": -0.5,
                        "bytes": [0xC3],
                        "top_logprobs": [{"token": "\ufffd", "logprob": -0.5, "bytes": [0xC3]}],
                    },
                ]
            },
        }
    ],
    "prompt_token_ids": [1, 2, 3],
    "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
}


def test_openai_chat_with_logprobs_bytes_and_vllm_ids() -> None:
    found = adapt_response(CHAT)
    assert found == Output(
        text="Hi é",
        token_ids=(5, 6),
        finish_reason="stop",
        positions=(
            Position("Hi", 5, -0.25, (Candidate("Hi", None, -0.25), Candidate("Yo", None, -2.0))),
            Position("bytes:\\xc3", 6, -0.5, (Candidate("bytes:\\xc3", None, -0.5),)),
        ),
    )
    assert prompt_token_ids(CHAT) == (1, 2, 3)
    assert response_factors(CHAT) == {
        "system_fingerprint": "fp_1",
        "model_reported": "m-2025",
        "cached_tokens": 2,
    }


def test_tool_calls_count_without_their_random_ids() -> None:
    def body(ident: str) -> dict[str, Any]:
        call = {"id": ident, "type": "function"}
        call["function"] = {"name": "find", "arguments": '{"day": 1}'}  # type: ignore[assignment]
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}

    first, second = adapt_response(body("call_a")), adapt_response(body("call_b"))
    assert first.text == second.text == 'find({"day": 1})'


def test_legacy_completions() -> None:
    body = {
        "object": "text_completion",
        "choices": [
            {
                "text": " a b",
                "index": 0,
                "finish_reason": "length",
                "logprobs": {
                    "tokens": [" a", " b"],
                    "token_logprobs": [-0.5, -1.5],
                    "top_logprobs": [{" c": -3.0, " a": -0.5}, None],
                    "text_offset": [0, 2],
                },
            }
        ],
    }
    found = adapt_response(body)
    assert found.positions == (
        Position(" a", None, -0.5, (Candidate(" a", None, -0.5), Candidate(" c", None, -3.0))),
        Position(" b", None, -1.5, ()),
    )
    assert (found.text, found.finish_reason, found.token_ids) == (" a b", "length", None)


@pytest.mark.parametrize(("usage", "kept"), [({"completion_tokens": 1}, 1), ({}, 0)])
def test_echoed_prompt_tokens_are_never_positions(usage: dict[str, int], kept: int) -> None:
    logprobs = {"tokens": ["Q", "?", " A"], "token_logprobs": [None, -7.0, -0.1]}
    body = {"choices": [{"text": "Q? A", "logprobs": logprobs}], "usage": usage}
    positions = adapt_response(body).positions
    assert len(positions or ()) == kept
    assert all(p.token == " A" for p in positions or ())


def test_token_ids_spelled_as_tokens() -> None:
    entry = {"token": "token_id:42", "logprob": -0.1, "top_logprobs": []}
    message = {"role": "assistant", "content": "x"}
    body = {"choices": [{"message": message, "logprobs": {"content": [entry]}}]}
    positions = adapt_response(body).positions
    assert positions is not None and positions[0].id == 42


def test_responses_api() -> None:
    logprobs = [{"token": "4", "logprob": -0.01, "bytes": [52], "top_logprobs": []}]
    body = {
        "object": "response",
        "status": "completed",
        "model": "m",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "add"}]},
            {
                "type": "message",
                "content": [{"type": "output_text", "text": "4", "logprobs": logprobs}],
            },
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        ],
        "usage": {"input_tokens_details": {"cached_tokens": 8}},
    }
    found = adapt_response(body)
    assert found.text == "add\n4\nf({})" and found.finish_reason == "completed"
    assert found.positions == (Position("4", None, -0.01),)
    assert response_factors(body)["cached_tokens"] == 8


def test_anthropic_gemini_bedrock() -> None:
    anthropic = {
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "text", "text": "ok"},
            {"type": "tool_use", "id": "x", "name": "f", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"cache_read_input_tokens": 5},
    }
    assert adapt_response(anthropic) == Output(text='ok\nf({"a":1})', finish_reason="tool_use")
    assert response_factors(anthropic) == {"cached_tokens": 5}
    part = {"functionCall": {"name": "f", "args": {}}}
    gemini = {
        "candidates": [{"content": {"parts": [{"text": "a"}, part]}, "finishReason": "STOP"}],
        "modelVersion": "g-1",
    }
    assert adapt_response(gemini) == Output(text="a\nf({})", finish_reason="STOP")
    assert response_factors(gemini) == {"model_reported": "g-1"}
    converse = {
        "output": {"message": {"role": "assistant", "content": [{"text": "hey"}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 3},
    }
    assert adapt_response(converse) == Output(text="hey", finish_reason="end_turn")
    assert response_factors(converse) == {}


def test_cohere_spans_of_several_tokens_have_no_text_of_their_own() -> None:
    body = {
        "message": {"role": "assistant", "content": [{"type": "text", "text": "ab c"}]},
        "finish_reason": "COMPLETE",
        "logprobs": [
            {"text": "ab", "token_ids": [1, 2], "logprobs": [-0.1, -0.2]},
            {"text": " c", "token_ids": [3], "logprobs": [-0.3]},
        ],
    }
    assert adapt_response(body).positions == (
        Position(None, 1, -0.1),
        Position(None, 2, -0.2),
        Position(" c", 3, -0.3),
    )


def test_ollama_chat_and_generate() -> None:
    chat = {
        "model": "q",
        "message": {"role": "assistant", "content": "x", "thinking": "hm"},
        "done": True,
        "done_reason": "stop",
        "logprobs": [{"token": "x", "logprob": -0.1, "top_logprobs": []}],
    }
    assert adapt_response(chat) == Output(
        text="hm\nx", finish_reason="stop", positions=(Position("x", None, -0.1),)
    )
    assert adapt_response({"response": "y", "done": True}).text == "y"


def test_llamacpp_keeps_logprobs_and_drops_probabilities_after_sampling() -> None:
    entry = {
        "id": 9,
        "token": "x",
        "bytes": [120],
        "logprob": -0.5,
        "top_logprobs": [{"id": 9, "token": "x", "bytes": [120], "logprob": -0.5}],
    }
    body = {
        "content": "x",
        "tokens": [9],
        "stop_type": "eos",
        "generation_settings": {"temperature": 0.0, "top_k": 40, "seed": 4294967295},
        "completion_probabilities": [entry],
        "timings": {"cache_n": 11},
    }
    found = adapt_response(body)
    assert found.positions == (Position("x", 9, -0.5, (Candidate("x", 9, -0.5),)),)
    assert found.token_ids == (9,) and found.finish_reason == "eos"
    assert response_factors(body) == {
        "cached_tokens": 11,
        "effective_params": {"temperature": 0.0, "top_k": 40},
    }
    sampled = {"id": 9, "token": "x", "prob": 1.0, "top_probs": [{"id": 9, "prob": 1.0}]}
    found = adapt_response({**body, "completion_probabilities": [sampled]})
    assert found.positions == (Position("x", 9, None),)


def test_tgi_and_sglang() -> None:
    token = {"id": 3, "text": "a", "logprob": -0.1, "special": False}
    other = {"id": 4, "text": "b", "logprob": -3.0, "special": False}
    tgi = [
        {
            "generated_text": "a",
            "details": {
                "finish_reason": "length",
                "tokens": [token],
                "top_tokens": [[token, other]],
            },
        }
    ]
    assert adapt_response(tgi) == Output(
        text="a",
        token_ids=(3,),
        finish_reason="length",
        positions=(Position("a", 3, -0.1, (Candidate("a", 3, -0.1), Candidate("b", 4, -3.0))),),
    )
    sglang = {
        "text": "a",
        "output_ids": [3],
        "meta_info": {
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": 2,
            "cached_tokens": 1,
            "weight_version": "w7",
            "input_token_logprobs": [[None, 8, None], [-1.0, 9, None]],
            "output_token_logprobs": [[-0.1, 3, "a"]],
            "output_top_logprobs": [[[-0.1, 3, "a"], [-4.0, 5, None]]],
        },
    }
    assert adapt_response(sglang) == Output(
        text="a",
        token_ids=(3,),
        finish_reason="stop",
        positions=(Position("a", 3, -0.1, (Candidate("a", 3, -0.1), Candidate(None, 5, -4.0))),),
    )
    assert prompt_token_ids(sglang) == (8, 9)
    assert response_factors(sglang) == {"cached_tokens": 1, "weights_digest": "w7"}
    sglang["meta_info"]["prompt_tokens"] = 5  # type: ignore[index]
    assert prompt_token_ids(sglang) is None  # only a part of the prompt came back


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "no"}},
        {"error": {"message": "no"}, "choices": [{"message": {"content": "x"}}]},
        {"type": "error", "error": {}},
        {},
        {"data": [{"embedding": [0.1]}]},
        None,
        [],
        7,
    ],
)
def test_errors_and_unknown_bodies_give_nothing(body: Any) -> None:
    assert adapt_response(body) == Output()
