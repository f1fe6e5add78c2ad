"""One batch: assembling it from requests, prefetching, splitting its outputs into answers."""
