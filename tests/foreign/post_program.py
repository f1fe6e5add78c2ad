"""Posts a file or a text to a URL and prints the answer; the status is 1 unless it is a 2xx.

python post_program.py URL (--file FILE | --text TEXT) [--type application/json] [--times N]
"""

import argparse
import sys
import urllib.error
import urllib.request
from pathlib import Path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--text", default="")
    parser.add_argument("--type", default="application/json")
    parser.add_argument("--times", type=int, default=1)
    given = parser.parse_args()
    body = given.file.read_bytes() if given.file else given.text.encode()
    for _ in range(given.times):
        request = urllib.request.Request(given.url, body, {"Content-Type": given.type})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                print(answer.status, answer.read().decode(errors="replace"))
        except urllib.error.HTTPError as error:
            print(error.code, error.read().decode(errors="replace"))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
