from functools import cache

import wordllama

from ksrv import Bytes, Float32, settings

package = cache(wordllama.WordLlama.load)


@settings(role="embedding", batching={"max_batch_size": 32})
def words(text: Bytes) -> Float32[256]:
    model = package(cache_dir=wordllama.__path__[0], disable_download=True)
    return model.embed([one.decode() for one in text])
