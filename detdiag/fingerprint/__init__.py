"""What ran: weights, tokenizer, template, configuration and stack, read from files. No torch."""
