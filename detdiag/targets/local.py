"""A Hugging Face causal LM on this machine, called the two ways a user calls one.

Random state: nothing here seeds. A stochastic operator under a fixed seed repeats only as long
as nobody else draws, so a seed before every call would hide exactly what has to be found. Calls
draw from the process's own generators, one after another, as they do in a user's server; a probe
that wants a repeatable walk seeds once at its start.

Training mode: ``from_pretrained`` returns evaluation mode. A module that is in training mode
after that was put there by the model's own code, and is left so for the probes to report.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from detdiag.errors import DetdiagError
from detdiag.targets import loading
from detdiag.targets.generated import Generated, collect
from detdiag.targets.padding import Padded, PaddingSide, pad_rows
from detdiag.targets.prompts import Prompt, default_prompts, load_prompts, text_prompts

__all__ = [
    "Generated",
    "LocalTarget",
    "Padded",
    "Prompt",
    "default_prompts",
    "load_local",
    "load_prompts",
    "pad_rows",
    "text_prompts",
]


@dataclass(slots=True)
class LocalTarget:
    """A loaded model with its tokenizer and the user's own ``generate`` arguments.

    ``path`` is the folder it came from (None: a hub id or built in memory). ``load_args`` are the
    arguments that load it again in another process. ``load_notes`` says what the loader had to
    make up (weights that the checkpoint lacks).
    """

    name: str
    path: Path | None
    model: Any
    tokenizer: Any
    device: str
    dtype: str
    prompts: tuple[Prompt, ...]
    generate_kwargs: Mapping[str, Any] = field(default_factory=dict)
    load_args: Mapping[str, Any] = field(default_factory=dict)
    load_notes: tuple[str, ...] = ()
    load_wall_s: float = 0.0
    _pristine: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.remember()

    def remember(self) -> None:
        """Take the model as it is now for what :meth:`fresh_model` gives copies of."""
        try:
            self._pristine = _copy_sharing_weights(self.model)
        except Exception:  # noqa: BLE001  (custom code may refuse to be copied)
            self._pristine = None

    @property
    def pad_id(self) -> int:
        """The id that fills padding: the tokenizer's, else its end of text, else 0."""
        for name in ("pad_token_id", "eos_token_id"):
            value = getattr(self.tokenizer, name, None)
            if isinstance(value, int):
                return value
        return 0

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids: the chat template for messages, the tokenizer's default call for text."""
        if prompt.messages is not None:
            ids = self._encode_chat(prompt)
        else:
            ids = self.tokenizer(prompt.text or "")["input_ids"]
        if not ids:
            bos = getattr(self.tokenizer, "bos_token_id", None)
            if bos is None:
                raise DetdiagError(f"prompt {prompt.id!r} has no tokens")
            ids = [bos]
        return tuple(int(i) for i in ids)

    def _encode_chat(self, prompt: Prompt) -> list[int]:
        if not getattr(self.tokenizer, "chat_template", None):
            raise DetdiagError(
                f"prompt {prompt.id!r} has messages, but the tokenizer has no chat template",
                tip="give the prompt as text",
            )
        encoded = self.tokenizer.apply_chat_template(
            [dict(m) for m in prompt.messages or ()],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )
        return list(encoded["input_ids"])

    def pad(
        self,
        rows: Sequence[Sequence[int]],
        *,
        padding_side: PaddingSide = "left",
        padded_length: int | None = None,
    ) -> Padded:
        """``rows`` as tensors on the model's device; see :func:`pad_rows`."""
        return pad_rows(
            rows,
            pad_id=self.pad_id,
            side=padding_side,
            padded_length=padded_length,
            device=self.device,
        )

    def forward(
        self,
        rows: Sequence[Sequence[int]],
        *,
        padding_side: PaddingSide = "left",
        padded_length: int | None = None,
        model: Any = None,
    ) -> list[Tensor]:
        """One plain batched forward: per row the logits (real tokens, vocabulary), no gradient.

        Mask and positions are passed whenever a row is padded and only then, as a mask of ones
        may select another attention kernel. ``model`` replaces the target's own (a copy of it).
        """
        batch = self.pad(rows, padding_side=padding_side, padded_length=padded_length)
        return self.forward_padded(batch, model=model)

    def forward_padded(self, batch: Padded, *, model: Any = None) -> list[Tensor]:
        """:meth:`forward` on rows that are padded already."""
        model = self.model if model is None else model
        with torch.no_grad():
            logits = model(**model_inputs(model, batch)).logits
        return [logits[row, batch.real(row)] for row in range(len(batch.starts))]

    def generate(
        self,
        rows: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        padding_side: PaddingSide = "left",
        padded_length: int | None = None,
        model: Any = None,
        **kwargs: Any,
    ) -> list[Generated]:
        """``model.generate`` with the user's arguments, ``kwargs`` winning over them.

        One :class:`Generated` a row (the first returned sequence of it, where several come back).
        """
        batch = self.pad(rows, padding_side=padding_side, padded_length=padded_length)
        model = self.model if model is None else model
        call = {**self.call_kwargs(**kwargs), "max_new_tokens": max_new_tokens}
        if getattr(model.generation_config, "pad_token_id", None) is None:
            call.setdefault("pad_token_id", self.pad_id)
        with torch.no_grad(), loading.quiet_transformers():
            result = model.generate(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                return_dict_in_generate=True,
                output_logits=True,
                output_scores=True,
                **call,
            )
        return collect(result, batch, self.tokenizer, _eos_ids(model, call))

    def call_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        """The user's arguments with ``kwargs`` over them; a ``generation_config`` given as a
        mapping becomes the object."""
        call = {**self.generate_kwargs, **kwargs}
        given = call.get("generation_config")
        if isinstance(given, Mapping):
            from transformers import GenerationConfig

            call["generation_config"] = GenerationConfig(**given)
        return call

    def effective_generation(self, **kwargs: Any) -> Any:
        """The GenerationConfig that ``generate`` will use, by the library's own merge."""
        call = self.call_kwargs(**kwargs)
        given = call.pop("generation_config", None)
        with loading.quiet_transformers():
            config, _ = self.model._prepare_generation_config(given, **call)
        return config

    def samples(self, **kwargs: Any) -> bool:
        """Whether the user's own call draws tokens at random."""
        return bool(getattr(self.effective_generation(**kwargs), "do_sample", False))

    def fresh_model(self) -> Any | None:
        """A copy of the model as it was at :meth:`remember`, sharing the weights.

        Buffers and plain attributes are copies, parameters are the target's own tensors. None
        when the model cannot be copied. State that lives outside the modules (globals, closures,
        class attributes) is not reset; only another process resets that.
        """
        return None if self._pristine is None else _copy_sharing_weights(self._pristine)


def model_inputs(model: Any, batch: Padded) -> dict[str, Any]:
    """Keyword arguments of a plain forward for ``batch``."""
    inputs: dict[str, Any] = {"input_ids": batch.input_ids}
    parameters = inspect.signature(model.forward).parameters
    if batch.is_padded:
        inputs["attention_mask"] = batch.attention_mask
        if "position_ids" in parameters:
            inputs["position_ids"] = batch.position_ids
    if "use_cache" in parameters or _takes_any(parameters):
        inputs["use_cache"] = False
    return inputs


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _eos_ids(model: Any, call: Mapping[str, Any]) -> frozenset[int]:
    given = call.get("eos_token_id")
    if given is None:
        given = getattr(call.get("generation_config"), "eos_token_id", None)
    if given is None:
        given = model.generation_config.eos_token_id
    if given is None:
        return frozenset()
    return frozenset([given] if isinstance(given, int) else given)


def _copy_sharing_weights(model: Any) -> Any:
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


def load_local(
    path_or_id: str | Path,
    *,
    dtype: str | None = None,
    device: str | None = None,
    attn: str | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
    prompts: Sequence[Prompt] | None = None,
    generate_kwargs: Mapping[str, Any] | None = None,
    serve: str | None = None,
) -> LocalTarget:
    """Load a model folder or hub id through the Auto classes.

    ``dtype`` None keeps the checkpoint's own, ``device`` None takes an accelerator if there is
    one. ``prompts`` None takes :func:`default_prompts`. ``serve`` names a demo fault to serve the
    model with, here and in child processes. Raises :class:`DetdiagError`.
    """
    began = time.monotonic()
    path = loading.resolve_path(path_or_id)
    source = str(path_or_id if path is None else path)
    where = loading.resolve_device(device)
    shared = {"trust_remote_code": trust_remote_code}
    if revision is not None:
        shared["revision"] = cast(Any, revision)
    extra: dict[str, Any] = {} if attn is None else {"attn_implementation": attn}
    tokenizer = loading.load_tokenizer(source, **shared)
    model, info = loading.load_model(source, dtype=loading.resolve_dtype(dtype), **extra, **shared)
    model = model.to(where)
    if serve is not None:
        from detdiag.demo import serve as demo_serve

        demo_serve(serve, model)
    return LocalTarget(
        name=source if path is None else path.resolve().name,
        path=path,
        model=model,
        tokenizer=tokenizer,
        device=where,
        dtype=str(model.dtype).removeprefix("torch."),
        prompts=tuple(default_prompts() if prompts is None else prompts),
        generate_kwargs=dict(generate_kwargs or {}),
        load_args={
            "path_or_id": source,
            "dtype": dtype,
            "device": where,
            "attn": attn,
            "trust_remote_code": trust_remote_code,
            "revision": revision,
            "serve": serve,
        },
        load_notes=_load_notes(info),
        load_wall_s=time.monotonic() - began,
    )


def _load_notes(info: Mapping[str, Any]) -> tuple[str, ...]:
    missing = sorted(str(k) for k in info.get("missing_keys") or ())
    if not missing:
        return ()
    return (
        f"{len(missing)} weights are not in the checkpoint and were drawn at random: "
        + ", ".join(missing[:3]),
    )
