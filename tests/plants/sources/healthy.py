"""A Llama that runs every row alone and without its padding: nothing about a batch can matter."""

import torch
from transformers import LlamaForCausalLM


class PlantedForCausalLM(LlamaForCausalLM):
    """The model that config.json names in auto_map. It keeps no cache between steps."""

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        use_cache=None,
        logits_to_keep=0,
        **kwargs,
    ):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits = None
        for row, real in enumerate(mask.bool()):
            out = super().forward(input_ids=input_ids[row : row + 1, real], use_cache=False)
            if logits is None:
                logits = out.logits.new_zeros(*input_ids.shape, out.logits.shape[-1])
            logits[row, real] = out.logits[0]
        out.logits = logits[:, -logits_to_keep:] if logits_to_keep else logits
        return out
