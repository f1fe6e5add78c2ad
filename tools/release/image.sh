#!/bin/sh
# Builds the container of deploy/docker/Dockerfile without Docker, and serves a model in it: as its user, on a read-only
# root, without capabilities, in a separate network. Needs root and buildah, whose steps are chroots here. `docker load`
# and `podman load` read dist/ksrv-VERSION.docker.tar.
#
# If dist/ has the wheel of a release for the base's Python, the container has this wheel; else it is compiled here.
# IMAGE_BASE=debian makes the base of Debian's packages (by debootstrap), for machines that reach no registry of images;
# another value is the name of a base. IMAGE_OPTIONS are options of `buildah bud`, such as --volume /etc/pip.conf:/etc/pip.conf:ro.
set -eu
version=$1
folder=$(realpath -m "${2:-build/image}")
base=${IMAGE_BASE:-python:3.11-slim-bookworm}
mkdir -p "$folder" dist
image() {
	command=$1
	shift
	buildah --root "$folder/storage" --runroot "$folder/run" --storage-driver vfs "$command" "$@"
}

if [ "$base" = debian ]; then
	base=localhost/python:3.11-debian
	if ! image inspect --type image "$base" >/dev/null 2>&1; then
		unshare --mount --pid --fork --mount-proc debootstrap --variant=minbase \
			--include=ca-certificates,python3-dev,python3-pip,python3-venv,python-is-python3 bookworm "$folder/debian" \
			"${MIRROR:-http://deb.debian.org/debian}" >"$folder/debootstrap.log" 2>&1
		echo 'deb http://deb.debian.org/debian bookworm main' >"$folder/debian/etc/apt/sources.list"
		container=$(image from scratch)
		image add -q "$container" "$folder/debian" /
		# The base is this container's alone, so pip may install into it.
		image config --env PIP_BREAK_SYSTEM_PACKAGES=1 --env PATH=/usr/local/bin:/usr/bin:/bin "$container"
		image commit -q --rm "$container" "$base"
		rm -rf "$folder/debian"
	fi
fi

epoch=$(git log -1 --format=%ct)
# shellcheck disable=SC2086 # options are words
image bud -q --format docker --isolation chroot --timestamp "$epoch" --build-arg PYTHON="$base" --build-arg SOURCE_DATE_EPOCH="$epoch" \
	--volume "$PWD/dist:/released:ro" ${IMAGE_OPTIONS:-} -f deploy/docker/Dockerfile -t "localhost/ksrv:$version" .
image push -q "localhost/ksrv:$version" "docker-archive:dist/ksrv-$version.docker.tar:ksrv:$version"
container=$(image from "localhost/ksrv:$version")
image inspect --type image "localhost/ksrv:$version" >"$folder/image.json"
root=$(image mount "$container")
unshare --mount --pid --net --fork --kill-child python3 tools/release/try_image.py "$root" "$folder/image.json" || status=$?
image rm "$container" >/dev/null
exit "${status:-0}"
