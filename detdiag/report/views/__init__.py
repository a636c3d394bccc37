"""What each section of the page shows: plain values for the template, no markup."""
