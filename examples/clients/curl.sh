#!/bin/sh
# KServe v2 over REST with curl.
#
#   sh curl.sh http://127.0.0.1:8080 MODEL INPUT VALUES SHAPE photo.jpg drawing.png ...
#
# Sends the first image alone, then all images as one batch, then a raw tensor of VALUES zeros in
# FP32 of SHAPE (as 1,8,8,3). Every line of output is one answer.
set -eu
url=$1/v2/models/$2/infer
input=$3
values=$4
shape=$5
shift 5

# One image: the JSON header, then the file. The header's length says where the file begins; a sole
# image needs no size.
header='{"inputs":[{"name":"'$input'","datatype":"BYTES","shape":[1]}]}'
{ printf %s "$header"; cat "$1"; } |
    curl -sS --fail-with-body "$url" -H "Inference-Header-Content-Length: ${#header}" --data-binary @-
echo

# A batch: the sizes of the images as a list.
sizes=
count=0
for image in "$@"; do
    sizes=$sizes${sizes:+,}$(($(wc -c < "$image")))
    count=$((count + 1))
done
header='{"inputs":[{"name":"'$input'","datatype":"BYTES","shape":['$count'],"parameters":{"binary_data_size":"'$sizes'"}}]}'
{ printf %s "$header"; cat "$@"; } |
    curl -sS --fail-with-body "$url" -H "Inference-Header-Content-Length: ${#header}" --data-binary @-
echo

# A raw tensor: four bytes a value.
header='{"inputs":[{"name":"'$input'","datatype":"FP32","shape":['$shape'],"parameters":{"binary_data_size":'$((values * 4))'}}]}'
{ printf %s "$header"; head -c $((values * 4)) /dev/zero; } |
    curl -sS --fail-with-body "$url" -H "Inference-Header-Content-Length: ${#header}" --data-binary @-
echo
