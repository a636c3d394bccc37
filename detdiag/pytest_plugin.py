"""pytest plugin: assert that a callable, a test's result or an endpoint repeats, with a bound.

::

    def test_greedy(assert_repeats):
        assert_repeats(lambda: generate("The lighthouse keeper"), bound=0.05)

    @pytest.mark.detdiag(runs=60, bound=0.05, confidence=0.95)
    def test_reply():
        return client.complete("The lighthouse keeper")     # what is returned must repeat

    def test_server(assert_endpoint_repeats):
        assert_endpoint_repeats("http://localhost:8000/v1", "Say hello.", model="m", runs=60)

Loaded by every pytest of an environment that has detdiag: nothing is imported here until used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from detdiag.gate.repeats import Plan, Repeats

MARKER = (
    "detdiag(runs=None, bound=None, confidence=0.95): the value that the test returns must repeat "
    "to the bit in that many runs; also the defaults of assert_repeats. bound is the rate of "
    "change that equal runs must exclude."
)
_NAMES = ("runs", "bound", "confidence")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


def _plan(item: pytest.Item, **given: Any) -> Plan:
    """The call's own figures over those of the closest marker."""
    from detdiag.gate.repeats import make_plan

    marker = item.get_closest_marker("detdiag")
    said = {} if marker is None else marker.kwargs
    if marker is not None and (marker.args or set(said) - set(_NAMES)):
        wrong = [*map(repr, marker.args), *sorted(set(said) - set(_NAMES))]
        raise ValueError(f"detdiag marker: {', '.join(wrong)}; expected {', '.join(_NAMES)}")
    own = {name: value for name, value in given.items() if value is not None}
    if "runs" in own and "bound" not in own:
        said = {k: v for k, v in said.items() if k != "bound"}
    if "bound" in own and "runs" not in own:
        said = {k: v for k, v in said.items() if k != "runs"}
    return make_plan(**{**said, **own})


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A marker that asks for what its runs cannot show is an error before anything runs."""
    if item.get_closest_marker("detdiag") is not None:
        try:
            _plan(item)
        except ValueError as error:
            pytest.fail(str(error), pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Repeat a marked test that returns a value; one that returns None runs once, as usual."""
    if pyfuncitem.get_closest_marker("detdiag") is None:
        return None
    import inspect

    if inspect.iscoroutinefunction(pyfuncitem.obj):
        return None  # an async plugin runs it; assert_repeats works inside
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    def call() -> Any:
        return pyfuncitem.obj(**arguments)

    value = call()
    if value is not None:
        _assert(pyfuncitem, call, _plan(pyfuncitem), pyfuncitem.name, first=(value,))
    return True


def _assert(
    item: pytest.Item, call: Callable[[], Any], plan: Plan, what: str, **options: Any
) -> Repeats:
    from detdiag.gate.repeats import failure_text, repeat

    __tracebackhide__ = True
    result = repeat(call, plan, **options)
    item.user_properties.append(("detdiag", _summary(result, what)))
    if not result.equal:
        pytest.fail(failure_text(result, plan, what), pytrace=False)
    return result


def _summary(result: Repeats, what: str) -> str:
    if result.equal:
        return f"{what}: {result.runs} equal runs, rate below {100 * result.bound:.2g} %"
    return f"{what}: {result.differing} of {result.runs} runs differ"


@pytest.fixture
def assert_repeats(request: pytest.FixtureRequest) -> Callable[..., Repeats]:
    """``assert_repeats(callable, *, runs=None, bound=None, confidence=None, key=None,
    stop_at_first=False) -> Repeats``: call it ``runs`` times; every result must be equal to the
    bit. Without ``runs`` the bound decides how many; without either, 20."""

    def check(
        call: Callable[[], Any],
        *,
        runs: int | None = None,
        bound: float | None = None,
        confidence: float | None = None,
        key: Callable[[Any], Any] | None = None,
        stop_at_first: bool = False,
    ) -> Repeats:
        __tracebackhide__ = True
        plan = _plan(request.node, runs=runs, bound=bound, confidence=confidence)
        what = getattr(call, "__name__", type(call).__name__)
        return _assert(request.node, call, plan, what, key=key, stop_at_first=stop_at_first)

    return check


@pytest.fixture
def assert_endpoint_repeats(request: pytest.FixtureRequest) -> Callable[..., Repeats]:
    """``assert_endpoint_repeats(url, prompt, *, model, runs=None, bound=None, confidence=None,
    max_tokens=64, body=None, headers=None, api_key_env=None, timeout_s=60, compare="text")``:
    ask an OpenAI-compatible server the same thing again and again, one request at a time, at
    temperature 0 unless ``body`` says otherwise. ``prompt`` is a text or a list of messages;
    ``compare`` is "text", "token" or "bitwise" (log-probabilities as sent)."""

    def check(
        url: str,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        model: str,
        runs: int | None = None,
        bound: float | None = None,
        confidence: float | None = None,
        stop_at_first: bool = False,
        **options: Any,
    ) -> Repeats:
        from detdiag.gate.endpoint_repeats import asker

        __tracebackhide__ = True
        plan = _plan(request.node, runs=runs, bound=bound, confidence=confidence)
        with asker(url, prompt, model=model, **options) as ask:
            return _assert(request.node, ask, plan, f"{model} at {url}",
                           stop_at_first=stop_at_first)  # fmt: skip

    return check
