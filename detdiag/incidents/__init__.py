"""Find requests that got different answers in logs of any size. Association, never proof."""
