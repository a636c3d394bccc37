"""Logs that a naive reader takes for a fault: nobody may be accused, and what remains is said."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from detdiag.engine.case_folder import load_case, load_evidence
from detdiag.errors import DetdiagError
from detdiag.evidence.adapters import read_evidence
from detdiag.verdict import decide

ONE = "Delivery is due within 14 days, freight paid by the seller."
TWO = "The seller delivers within fourteen days and pays the freight."
ASKED = "Summarise the delivery terms of clause 7 in one sentence."


def lines(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def asked(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": ASKED}]
    return {"model": "m", "messages": messages, "temperature": 0, **more}


def chat(number: int, answer: str, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": f"chatcmpl-{number}", "model": "m", "choices": [choice], **more}


def streamed(number: int, answer: str, *, ended: bool = True) -> str:
    deltas = [{"content": answer[i : i + 5]} for i in range(0, len(answer), 5)]
    chunks = [{"id": f"c-{number}", "choices": [{"index": 0, "delta": d}]} for d in deltas]
    if not ended:
        return "".join(f"data: {json.dumps(c)}\n\n" for c in chunks[:3])
    chunks.append({"id": f"c-{number}", "choices": [{"delta": {}, "finish_reason": "stop"}]})
    return "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"


def verdict(*paths: Path) -> dict[str, Any]:
    return decide(load_evidence(paths)).to_dict()["verdict"]


def test_streams_cut_on_one_server_are_no_other_answer(tmp_path: Path) -> None:
    def row(i: int) -> dict[str, Any]:
        reply = streamed(i, ONE, ended=not (i % 2 and i % 4 == 1))
        return {"provider": "B" if i % 2 else "A", "request": asked(), "response": reply}

    log = lines(tmp_path / "log.jsonl", map(row, range(28)))
    found = read_evidence(log)
    assert found is not None and len(found.observations) == 21
    assert "7 of 28 records left out: the stream broke off before its end" in found.notes
    assert verdict(log)["status"] == "clean"


def test_where_no_stream_has_an_end_the_log_left_it_out(tmp_path: Path) -> None:
    rows = [{"request": asked(), "response": streamed(i, ONE, ended=False)} for i in range(12)]
    found = read_evidence(lines(tmp_path / "log.jsonl", rows))
    assert found is not None and len(found.observations) == 12


def test_reasoning_that_only_one_build_logs_is_no_divergence(tmp_path: Path) -> None:
    def row(i: int) -> dict[str, Any]:
        reply = chat(i, ONE, system_fingerprint=f"fp_{i % 2}")
        if i % 2:
            reply["choices"][0]["message"]["reasoning_content"] = "Clause 7 says fourteen days."
        return {"request": asked(), "response": reply}

    log = lines(tmp_path / "log.jsonl", map(row, range(24)))
    assert verdict(log)["status"] == "clean"
    other = [{**row(i), "response": chat(i, (ONE, TWO)[i % 2])} for i in range(24)]
    for i, one in enumerate(other):
        one["response"]["system_fingerprint"] = f"fp_{i % 2}"
    assert verdict(lines(tmp_path / "other.jsonl", other))["layer"] == "version"


def span(i: int, parts: list[dict[str, Any]]) -> dict[str, Any]:
    said = {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.0, "gen_ai.openai.response.system_fingerprint":
        f"fp_{i % 2}", "gen_ai.input.messages": json.dumps([{"role": "user", "content": ASKED}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": parts}]),
    }  # fmt: skip
    attributes = [
        {"key": k, "value": {"doubleValue" if isinstance(v, float) else "stringValue": v}}
        for k, v in said.items()
    ]
    one = {"name": "chat m", "spanId": f"{i:016x}", "attributes": attributes}
    one |= {"startTimeUnixNano": f"{i}000000000", "endTimeUnixNano": f"{i}900000000"}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]}


def test_reasoning_that_only_some_spans_keep_is_no_divergence(tmp_path: Path) -> None:
    def rows(answers: tuple[str, str]) -> Iterable[dict[str, Any]]:
        for i in range(24):
            thought = [{"type": "reasoning", "content": "Clause 7."}] if i % 2 else []
            yield span(i, [*thought, {"type": "text", "content": answers[i % 2]}])

    assert verdict(lines(tmp_path / "same.jsonl", rows((ONE, ONE))))["status"] == "clean"
    assert verdict(lines(tmp_path / "other.jsonl", rows((ONE, TWO))))["layer"] == "version"


def test_reasoning_that_every_reply_keeps_is_compared(tmp_path: Path) -> None:
    def row(i: int) -> dict[str, Any]:
        reply = chat(i, ONE)
        reply["choices"][0]["message"]["reasoning_content"] = f"thought {i % 2}"
        return {"request": asked(), "response": reply}

    found = read_evidence(lines(tmp_path / "log.jsonl", map(row, range(4))))
    assert found is not None and len({o.output.text for o in found.observations}) == 2


def test_records_of_errors_are_no_empty_answers(tmp_path: Path) -> None:
    def row(i: int) -> dict[str, Any]:
        failed = i % 3 == 0
        return {
            "provider": "B" if failed else "A", "model": "m", "temperature": 0, "input": ASKED,
            "output": "" if failed else ONE, "error": "upstream timed out" if failed else None,
        }  # fmt: skip

    assert verdict(lines(tmp_path / "log.jsonl", map(row, range(30))))["status"] == "clean"


def test_one_stray_answer_under_a_label_that_occurs_once(tmp_path: Path) -> None:
    def rows(strays: int) -> Iterable[dict[str, Any]]:
        for i in range(20):
            stray = i < strays
            reply = chat(i, TWO if stray else ONE, system_fingerprint=f"fp_{int(stray)}")
            yield {"request": asked(), "response": reply}

    found = verdict(lines(tmp_path / "one.jsonl", rows(1)))
    assert (found["status"], found["layer"]) == ("inconclusive", None)
    assert "system_fingerprint" in found["sentence"]
    assert verdict(lines(tmp_path / "more.jsonl", rows(6)))["layer"] == "version"


def langfuse(i: int, parameters: Any) -> dict[str, Any]:
    return {
        "id": f"g{i}", "traceId": "t", "type": "GENERATION",
        "startTime": f"2026-03-09T08:{i:02}:00Z",
        "model": "m", "modelParameters": parameters, "input": [{"role": "user", "content": ASKED}],
        "output": (ONE, TWO)[i % 2],
    }  # fmt: skip


def langsmith(i: int, parameters: Any) -> dict[str, Any]:
    return {
        "id": f"r{i}", "run_type": "llm", "start_time": f"2026-03-09T08:{i:02}:00",
        "inputs": {"messages": [{"role": "user", "content": ASKED}]},
        "outputs": chat(i, (ONE, TWO)[i % 2]),
        "extra": {"invocation_params": parameters or {}},
    }  # fmt: skip


def openinference(i: int, parameters: Any) -> dict[str, Any]:
    told = {"llm.invocation_parameters": json.dumps(parameters)} if parameters else {}
    return {
        "name": "llm", "context": {"span_id": f"s{i}"}, "start_time": f"2026-03-09T08:{i:02}:00Z",
        "attributes": {
            "openinference.span.kind": "LLM", "llm.model_name": "m", **told,
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": ASKED,
            "llm.output_messages.0.message.content": (ONE, TWO)[i % 2],
        },
    }  # fmt: skip


def bare(i: int, parameters: Any) -> dict[str, Any]:
    told = {"parameters": parameters} if parameters else {}
    return {"input": [{"role": "user", "content": ASKED}], "output": (ONE, TWO)[i % 2], **told}


@pytest.mark.parametrize("row", [langfuse, langsmith, openinference, bare])
def test_parameters_that_were_not_recorded_are_not_absent(
    tmp_path: Path, row: Callable[[int, Any], dict[str, Any]]
) -> None:
    unknown = verdict(lines(tmp_path / "unknown.jsonl", (row(i, None) for i in range(14))))
    assert (unknown["status"], unknown["layer"]) == ("inconclusive", None)
    assert "temperature" in unknown["sentence"]
    told = verdict(lines(tmp_path / "told.jsonl", (row(i, {"temperature": 1}) for i in range(14))))
    assert told["layer"] == "config"


def test_unrecorded_parameters_survive_the_record(tmp_path: Path) -> None:
    from detdiag.evidence.observation import Observation

    found = read_evidence(lines(tmp_path / "log.jsonl", (langfuse(i, None) for i in range(2))))
    assert found is not None
    one = found.observations[0]
    assert one.unrecorded == ("parameters",)
    assert Observation.from_dict(one.to_dict()).unrecorded == ("parameters",)


def test_a_temperature_that_a_logger_made_a_string_is_zero(tmp_path: Path) -> None:
    def row(i: int) -> dict[str, Any]:
        reply = chat(i, (ONE, TWO)[i % 2], system_fingerprint=f"fp_{i % 2}")
        return {"request": asked(temperature="0"), "response": reply}

    assert verdict(lines(tmp_path / "log.jsonl", map(row, range(20))))["layer"] == "version"


def test_the_word_delta_makes_no_stream_of_messages(tmp_path: Path) -> None:
    def row(i: int) -> dict[str, Any]:
        messages = [
            {"role": "system", "content": "You explain options."},
            {"role": "user", "content": "What is the delta of a call option?"},
        ]
        return {"temperature": 0, "input": messages, "output": "The rate of change of its price."}

    assert verdict(lines(tmp_path / "log.jsonl", map(row, range(12))))["status"] == "clean"


def test_one_record_shipped_again_is_one_run(tmp_path: Path) -> None:
    row = {
        "id": "r7",
        "ts": "2026-03-09T08:15:02Z",
        "temperature": 0,
        "input": ASKED,
        "output": ONE,
    }
    assert verdict(lines(tmp_path / "log.jsonl", [row] * 12))["status"] == "inconclusive"
    apart = [{**row, "ts": f"2026-03-09T08:15:{i:02}Z"} for i in range(12)]
    assert verdict(lines(tmp_path / "apart.jsonl", apart))["status"] == "clean"


def test_exports_that_overlap_hold_each_call_once(tmp_path: Path) -> None:
    rows = [{**langfuse(i, {"temperature": 0}), "output": ONE} for i in range(9)]
    lines(tmp_path / "week.jsonl", rows)
    lines(tmp_path / "day.jsonl", rows[4:])
    assert len(load_case(tmp_path).observations) == 9


def test_dots_of_trace_ascii_are_no_text(tmp_path: Path) -> None:
    def transfer(i: int, answer: str) -> str:
        sent, got = json.dumps(asked()), json.dumps(chat(i, answer), ensure_ascii=False)
        shown = "".join(c if " " <= c <= "~" else "..." for c in got)
        parts = [shown[k : k + 64] for k in range(0, len(shown), 64)]
        body = "\n".join(f"{64 * k:04x}: {part}" for k, part in enumerate(parts))
        return (
            "=> Send header, 40 bytes (0x28)\n0000: POST /v1/chat/completions HTTP/1.1\n0024: \n"
            f"=> Send data, {len(sent)} bytes\n0000: {sent}\n"
            "<= Recv header, 17 bytes (0x11)\n0000: HTTP/1.1 200 OK\n"
            f"<= Recv data, 9 bytes\n{body}\n"
        )

    plain = tmp_path / "plain.txt"
    plain.write_text("".join(transfer(i, ONE) for i in range(12)))
    assert verdict(plain)["status"] == "clean"
    lost = tmp_path / "lost.txt"
    lost.write_text("".join(transfer(i, ("超时过期", "策略淘汰")[i % 2]) for i in range(12)))
    found = verdict(lost)
    assert found["status"] == "inconclusive" and "dots in place of bytes" in found["sentence"]


def test_a_log_without_content_is_named_and_inconclusive(tmp_path: Path) -> None:
    span = {
        "name": "chat m",
        "context": {"span_id": "a"},
        "attributes": {"gen_ai.request.model": "m"},
    }
    lines(tmp_path / "spans.jsonl", [span] * 3)
    found = decide(load_case(tmp_path)).to_dict()["verdict"]
    assert found["status"] == "inconclusive"
    assert "spans.jsonl (OpenTelemetry GenAI spans): 3 of 3 records" in found["sentence"]


def test_a_har_without_a_call_says_so_and_does_not_list_formats(tmp_path: Path) -> None:
    entry = {"request": {"method": "GET", "url": "https://e.com/a.js"}, "response": {"status": 200}}
    path = tmp_path / "page.har"
    path.write_text(json.dumps({"log": {"version": "1.2", "entries": [entry]}}))
    with pytest.raises(
        DetdiagError, match=r"page\.har \(HAR 1\.2\): no reply in this file"
    ) as error:
        load_evidence([path])
    assert "known log formats" not in str(error.value)


def test_what_a_log_left_out_is_in_the_report(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"request": asked(), "response": chat(i, ONE)} for i in range(11)]
    rows.append({"request": asked(), "response": {"error": {"message": "rate"}}, "status": 429})
    report = decide(load_evidence([lines(tmp_path / "log.jsonl", rows)])).to_dict()
    assert "log.jsonl: 1 of 12 records left out: HTTP status 429" in report["method"]["limits"]


def test_bedrock_invocation_logs(tmp_path: Path) -> None:
    """Record shape of the AWS documentation on model invocation logging."""

    def row(i: int) -> dict[str, Any]:
        output: dict[str, Any] = {"message": {"role": "assistant", "content": [{"text": ""}]}}
        output["message"]["content"][0]["text"] = (ONE, TWO)[i % 2]
        return {
            "schemaType": "ModelInvocationLog", "timestamp": f"2026-03-09T08:{i:02}:00Z",
            "region": "us-east-1", "inferenceRegion": ("us-east-1", "us-west-2")[i % 2],
            "requestId": f"q{i}", "operation": "Converse", "modelId": "anthropic.claude-3",
            "input": {"inputBodyJson": {
                "messages": [{"role": "user", "content": [{"text": ASKED}]}],
                "inferenceConfig": {"temperature": 0},
            }},
            "output": {"outputBodyJson": {"output": output, "stopReason": "end_turn"}},
        }  # fmt: skip

    rows = [*map(row, range(20)), {**row(21), "errorCode": "ThrottlingException", "output": {}}]
    path = tmp_path / "log.json.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    found = read_evidence(path)
    assert found is not None and found.format == "Bedrock model invocation log"
    assert found.notes == ("1 of 21 records left out: error ThrottlingException",)
    assert {o.factors["replica"] for o in found.observations} == {"us-east-1", "us-west-2"}
    assert verdict(path)["layer"] == "version"


def test_gemini_chunks_and_cohere_messages_are_grouped(tmp_path: Path) -> None:
    def part(words: str) -> dict[str, Any]:
        return {"candidates": [{"content": {"parts": [{"text": words}]}}]}

    def gemini(i: int) -> dict[str, Any]:
        end = {"candidates": [{"content": {"parts": [{"text": ONE[i:]}]}, "finishReason": "STOP"}]}
        request = {
            "contents": [{"parts": [{"text": ASKED}]}],
            "generationConfig": {"temperature": 0},
        }
        return {"request": request, "response": [part(ONE[:i]), end]}

    def cohere(i: int) -> dict[str, Any]:
        request = {"model": "command-r", "message": ASKED, "temperature": 0}
        return {"request": request, "response": {"text": ONE, "generation_id": f"g{i}"}}

    assert verdict(lines(tmp_path / "g.jsonl", map(gemini, range(1, 13))))["status"] == "clean"
    assert verdict(lines(tmp_path / "c.jsonl", map(cohere, range(12))))["status"] == "clean"


def test_curl_traces_tell_the_address(tmp_path: Path) -> None:
    def transfer(i: int, prefix: str) -> str:
        sent, got = json.dumps(asked()), json.dumps(chat(i, (ONE, TWO)[i % 2]))
        return (
            f"{prefix}== Info: Connected to e.com (10.0.0.{i % 2}) port 443\n"
            f"{prefix}=> Send header, 40 bytes (0x28)\n"
            "0000: POST /v1/chat/completions HTTP/1.1\n0024: \n"
            f"{prefix}=> Send data, {len(sent)} bytes\n0000: {sent}\n"
            f"{prefix}<= Recv header, 17 bytes (0x11)\n0000: HTTP/1.1 200 OK\n"
            f"{prefix}<= Recv data, 9 bytes\n0000: {got}\n"
        )

    for prefix in ("", "08:15:02.417000 ", "08:15:02.417000 [0-0] "):
        path = tmp_path / "trace.txt"
        path.write_text("".join(transfer(i, prefix) for i in range(12)))
        assert verdict(path)["layer"] == "version", prefix


def test_a_streamed_tool_call_is_the_whole_one() -> None:
    from detdiag.evidence.adapters import adapt_response
    from detdiag.evidence.adapters.streams import decode_body

    block = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": "fog", "n": 3}}
    whole = {"type": "message", "content": [block], "stop_reason": "tool_use"}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"type": "message", "content": []}},
        {"type": "content_block_start", "index": 0,
         "content_block": {**block, "id": "toolu_2", "input": {}}},
        *({"type": "content_block_delta", "index": 0, "delta": {"partial_json": piece}}
          for piece in ('{"q": "f', 'og", "n": 3}')),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    ]  # fmt: skip
    raw = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    assert adapt_response(decode_body(raw)).text == adapt_response(whole).text


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"PAR1\x00\x15\x04\x00PAR1", "binary data"),
        (b'{"log": {"entries": ', "not valid JSON"),
        (b"a note of the on-call engineer", "text that no format matches"),
        (b"", "empty"),
    ],
)
def test_unknown_files_are_described_in_one_line(tmp_path: Path, raw: bytes, said: str) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(raw)
    with pytest.raises(DetdiagError, match=said) as error:
        load_evidence([path])
    assert "known log formats: HAR 1.2" in str(error.value) and "\n" not in str(error.value)


def test_answers_that_a_logger_cut_are_no_evidence(tmp_path: Path) -> None:
    rows = [
        {"request": asked(), "response": chat(i, ONE[:20] + "... [truncated 39 chars]")}
        for i in range(12)
    ]
    assert verdict(lines(tmp_path / "log.jsonl", rows))["status"] == "inconclusive"
    said = "The list was truncated (see the annex)"
    rows = [{"request": asked(), "response": chat(i, said)} for i in range(12)]
    assert verdict(lines(tmp_path / "said.jsonl", rows))["status"] == "clean"


@pytest.mark.parametrize("number", ["1e999", "NaN", "1.5"])
def test_ids_that_are_no_integers_are_one_clear_line(tmp_path: Path, number: str) -> None:
    (tmp_path / "observations.jsonl").write_text(f'{{"id": "a", "prompt_token_ids": [{number}]}}\n')
    with pytest.raises(DetdiagError, match=r"observations\.jsonl:1: .*expected an integer"):
        load_case(tmp_path)


def test_a_log_beside_observations_stays_an_association(tmp_path: Path) -> None:
    own = ({"id": f"o{i}", "query": "q", "output": {"text": ONE}} for i in range(10))
    lines(tmp_path / "observations.jsonl", own)
    rows = (
        {"provider": "AB"[i % 2], "request": asked(), "response": chat(i, (ONE, TWO)[i % 2])}
        for i in range(20)
    )
    lines(tmp_path / "log.jsonl", rows)
    found = decide(load_case(tmp_path)).to_dict()["verdict"]
    assert (found["layer"], found["confidence"]) == ("version", "suspected")
