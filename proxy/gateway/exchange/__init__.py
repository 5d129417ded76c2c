"""One exchange: admission, relay, record."""
