"""A GPT-2 whose caller's position ids are thrown away: padded rows start at the wrong place."""

from transformers import GPT2LMHeadModel


class PlantedForCausalLM(GPT2LMHeadModel):
    """The model that config.json names in auto_map."""

    def forward(self, input_ids=None, position_ids=None, **kwargs):
        return super().forward(input_ids=input_ids, position_ids=None, **kwargs)
