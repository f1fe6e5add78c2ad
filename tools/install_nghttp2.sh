#!/bin/sh
# Installs libnghttp2 in the image that builds the wheels: manylinux_2_28 has 1.33, and ksrv needs 1.43 or newer.
set -eu
version=1.68.1
digest=ceb434c1f9dfe2a9d305b6b797786fb9227484dfa88508d14ca1c50263db55d3
cd "$(mktemp -d)"
curl -sSfLO "https://github.com/nghttp2/nghttp2/releases/download/v$version/nghttp2-$version.tar.gz"
echo "$digest  nghttp2-$version.tar.gz" | sha256sum -c -
tar -xf "nghttp2-$version.tar.gz" --strip-components=1
./configure -q --enable-lib-only --disable-static --prefix=/usr --libdir=/usr/lib64
make -s -j "$(nproc)" install
