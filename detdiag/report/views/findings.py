"""What each figure shows, as a sentence made from its numbers."""

from __future__ import annotations

from detdiag.report import model
from detdiag.report.messages import Say
from detdiag.report.numbers import number
from detdiag.report.safe import finite, one_line, visible


def margins_finding(report: model.Report, say: Say) -> str:
    found = model.rows(report.get("margins"))
    measured = [
        (finite(r.get("margin_logits")), finite(r.get("noise_logits")), bool(r.get("flipped")))
        for r in found
    ]
    known = [(m, n, f) for m, n, f in measured if m is not None and n is not None]
    risky = sum(1 for m, n, _ in known if m <= n)
    flipped = sum(1 for _, _, f in known if f)
    above = sum(1 for m, n, f in known if f and m > n)
    text = say("margins.found", all=len(known), risky=risky, flipped=flipped)
    if flipped:
        text += " " + (say("margins.above", n=above) if above else say("margins.none_above"))
    if len(known) < len(found):
        text += " " + say("margins.unmeasured", n=len(found) - len(known))
    return text


def heatmap_finding(report: model.Report, say: Say) -> str:
    heat = model.mapping(model.data(report).get("heatmap"))
    first = model.mapping(heat.get("first"))
    if not first.get("module"):
        return say("heatmap.none")
    op = f" ({one_line(first['op'], 60)})" if first.get("op") else ""
    return say(
        "heatmap.found",
        module=one_line(first["module"], 120),
        token=number(first.get("token")),
        op=op,
    )


def sweep_finding(report: model.Report, say: Say) -> str:
    found = model.rows(model.data(report).get("sweep"))
    batched = [r for r in found if (finite(r.get("batch_size")) or 1) > 1]
    differ = sorted(
        {int(finite(r["batch_size"]) or 0) for r in batched if r.get("bit_equal") is False}
    )
    if not batched:
        return say("sweep.solo_only")
    if not differ:
        return say("sweep.equal", n=len(batched))
    largest = max((finite(r.get("max_abs_logit")) or 0.0 for r in batched), default=0.0)
    flips = sum(int(finite(r.get("flips")) or 0) for r in batched)
    return say(
        "sweep.found", sizes=", ".join(str(s) for s in differ), largest=number(largest), flips=flips
    )


def operators_finding(report: model.Report, say: Say) -> str:
    data = model.data(report)
    proof = model.mapping(data.get("proof"))
    statement = proof.get("statement")
    if isinstance(statement, (list, tuple)) and statement:
        return "; ".join(visible(line).rstrip(".") for line in statement) + "."
    born = [r for r in model.rows(data.get("operators")) if r.get("label") == "born"]
    if born:
        names = ", ".join(dict.fromkeys(one_line(r.get("op"), 60) for r in born[:5]))
        return say("operators.born", names=names)
    stops = [r for r in model.rows(data.get("toggles")) if r.get("bit_equal")]
    if stops:
        return say(
            "operators.toggle",
            names=", ".join(
                f"{one_line(r.get('toggle'), 60)}={one_line(r.get('value'), 30)}" for r in stops[:4]
            ),
        )
    return say("operators.none")


def routing_finding(report: model.Report, say: Say) -> str:
    routing = model.mapping(model.data(report).get("routing"))
    grid = [line for line in routing.get("changed") or [] if isinstance(line, (list, tuple))]
    cells = sum(len(line) for line in grid)
    changed = sum(1 for line in grid for v in line if v)
    return say("routing.found" if changed else "routing.none", k=changed, n=cells, blocks=len(grid))


def router_margins_finding(report: model.Report, say: Say) -> str:
    found = model.rows(model.mapping(model.data(report).get("routing")).get("margins"))
    ties = sum(1 for r in found if finite(r.get("margin")) == 0)
    changed = [r for r in found if r.get("changed")]
    largest = max((finite(r.get("margin")) or 0.0 for r in changed), default=None)
    return say(
        "router_margins.found",
        n=len(found),
        ties=ties,
        changed=len(changed),
        largest=number(largest),
    )
