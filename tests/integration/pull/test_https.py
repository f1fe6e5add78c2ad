"""`ksrv pull https://...`: whole and broken transfers, digests, and what the folder has afterwards."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from ksrv.cli.main import main
from tests.support.certificates import self_signed
from tests.support.pull.https_server import STALL_S, https_server
from tests.support.servers.http_handlers import QuietHandler, handlers_served

pytest.importorskip("obstore")

CONTENT = os.urandom(4_000_000)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    # rustls takes no certificate of an authority for a server's.
    return self_signed(tmp_path_factory.mktemp("tls"), extensions=["basicConstraints=CA:FALSE"])


@pytest.fixture
def files(certificate, monkeypatch):
    with https_server(*certificate) as files:
        monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))
        files.contents["/cats.onnx"] = CONTENT
        yield files


@pytest.fixture
def pull(files, tmp_path, monkeypatch):
    monkeypatch.setattr("ksrv.pull.objects.READ_TIMEOUT_S", 1)
    monkeypatch.setattr("ksrv.pull.objects.RETRIES", 2)

    def run(uri=None, *options):
        uri = uri or f"{files.url}/cats.onnx"
        return CliRunner().invoke(main, ["pull", uri, str(tmp_path / "cats" / "1"), *options])

    return run


def content_of(folder):
    return (folder / "cats/1/cats.onnx").read_bytes()


def no_folder(folder):
    return not (folder / "cats/1").exists() and not (folder / "cats/.1.pull.lock").exists()


def test_file_arrives_with_its_lock(pull, files, tmp_path):
    done = pull()
    assert done.exit_code == 0, done.output
    assert content_of(tmp_path) == CONTENT
    assert sorted(path.name for path in (tmp_path / "cats").iterdir()) == [".1.pull.lock", "1"]
    lock = json.loads((tmp_path / "cats/.1.pull.lock").read_text())
    assert lock["uri"] == f"{files.url}/cats.onnx"
    digest = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    assert lock["files"] == {"cats.onnx": digest}
    assert lock["revision"] in done.output


def test_second_pull_transfers_nothing(pull, files):
    assert pull().exit_code == 0
    files.seen.clear()
    done = pull()
    assert done.exit_code == 0 and "already" in done.output
    assert len(files.seen) == 1  # for the ETag


def test_changed_source_does_not_change_the_folder(pull, files, tmp_path):
    assert pull().exit_code == 0
    files.etag = '"two"'
    done = pull()
    assert done.exit_code == 1 and "pull into another folder" in " ".join(done.output.split())
    assert content_of(tmp_path) == CONTENT


@pytest.mark.parametrize("change", ["content", "missing", "extra", "link"])
def test_verify_reports_each_changed_file(pull, files, tmp_path, change):
    assert pull().exit_code == 0
    assert pull(None, "--verify").exit_code == 0
    path = tmp_path / "cats/1/cats.onnx"
    if change == "content":
        path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    elif change == "extra":
        (path.parent / "handler.py").write_text("")
    else:
        path.unlink()
        if change == "link":
            path.symlink_to(files.authority)
    files.seen.clear()
    done = pull(None, "--verify")
    assert done.exit_code == 1
    says = {
        "content": "'cats.onnx' has another content",
        "link": "'cats.onnx' has another content",
        "missing": "'cats.onnx' is missing",
        "extra": "'handler.py' was not pulled",
    }[change]
    assert says in done.output
    assert not files.seen


def test_verify_of_a_folder_that_was_not_pulled(pull, tmp_path):
    (tmp_path / "cats/1").mkdir(parents=True)
    done = pull(None, "--verify")
    assert done.exit_code == 1 and ".1.pull.lock is missing" in done.output


def test_verify_of_another_address(pull, files):
    assert pull().exit_code == 0
    done = pull(f"{files.url}/dogs.onnx", "--verify")
    assert done.exit_code == 1 and "not from" in done.output


@pytest.mark.parametrize("lock", ["", "[]", "{}", '{"uri": 1, "revision": "", "files": {}}', "\0"])
def test_damaged_lock_is_reported(pull, tmp_path, lock):
    assert pull().exit_code == 0
    (tmp_path / "cats/.1.pull.lock").write_text(lock)
    for options in ([], ["--verify"]):
        done = pull(None, *options)
        assert done.exit_code == 1 and "is damaged" in done.output


def test_cut_transfer_goes_on_where_it_ended(pull, files, tmp_path):
    files.cut_after, files.cuts = 3_000_000, 1
    done = pull()
    assert done.exit_code == 0, done.output
    assert content_of(tmp_path) == CONTENT
    assert files.first_bytes()[-1] == 3_000_000


@pytest.mark.parametrize("etag", ["", 'W/"weak"'])
def test_cut_transfer_without_strong_tag_starts_again(pull, files, tmp_path, etag):
    files.etag, files.cut_after, files.cuts = etag, 3_000_000, 1
    done = pull()
    assert done.exit_code == 0, done.output
    assert content_of(tmp_path) == CONTENT


def test_transfer_that_is_always_cut_fails_and_goes_on_later(pull, files, tmp_path):
    files.cut_after, files.cuts, files.ranges = 1_200_000, 1000, False
    done = pull()
    assert done.exit_code == 1 and no_folder(tmp_path), done.output
    files.cuts, files.ranges = 0, True
    files.seen.clear()
    done = pull()
    assert done.exit_code == 0, done.output
    assert content_of(tmp_path) == CONTENT
    assert files.first_bytes()[-1] > 1_000_000


def test_file_that_changes_during_the_transfer_is_refused(pull, files, tmp_path):
    files.cut_after, files.etag_after_cut = 3_000_000, '"two"'
    done = pull()
    assert done.exit_code == 1 and "changed; run the command again" in done.output
    assert no_folder(tmp_path)
    done = pull()
    assert done.exit_code == 0, done.output
    assert content_of(tmp_path) == CONTENT


def test_server_without_ranges_is_asked_from_the_start(pull, files, tmp_path):
    files.ranges, files.cut_after, files.cuts = False, 3_000_000, 1
    done = pull()
    assert done.exit_code == 0, done.output
    assert content_of(tmp_path) == CONTENT


def test_stalled_transfer_goes_on(pull, files, tmp_path):
    files.stalls, files.cut_after, files.cuts = True, 3_000_000, 1
    began = time.monotonic()
    done = pull()
    assert done.exit_code == 0, done.output
    assert content_of(tmp_path) == CONTENT
    assert time.monotonic() - began < STALL_S


def test_slow_transfer_is_not_cut_by_the_timeout(pull, files, tmp_path):
    files.contents["/cats.onnx"] = CONTENT[:1_000_000]
    files.pause_s = 0.15  # 2.4 seconds, and at most 1 without a byte
    assert pull().exit_code == 0
    assert content_of(tmp_path) == CONTENT[:1_000_000]
    assert not any(files.first_bytes())  # a transfer that was cut would go on later in the file


def test_announced_bytes_that_do_not_come_are_an_error(pull, files, tmp_path):
    files.length_error = 10
    done = pull()
    assert done.exit_code == 1 and no_folder(tmp_path)


def test_body_without_length_is_refused(pull, files, tmp_path):
    files.chunked = True
    done = pull()
    assert done.exit_code == 1 and "Content-Length" in done.output, done.output


def test_right_digest_is_accepted(pull, files):
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert pull(f"{files.url}/cats.onnx#sha256={digest}").exit_code == 0


def test_another_digest_than_the_pulled_is_refused(pull, files):
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert pull(f"{files.url}/cats.onnx?key=1#sha256={digest}").exit_code == 0
    assert "already" in pull(f"{files.url}/cats.onnx?key=2#sha256={digest}").output
    for options in ([], ["--verify"]):
        done = pull(f"{files.url}/cats.onnx#sha256={'0' * 64}", *options)
        assert done.exit_code == 1 and "0" * 64 in done.output


def test_wrong_digest_is_refused_and_pulled_again(pull, files, tmp_path):
    right = hashlib.sha256(CONTENT).hexdigest()
    files.contents["/cats.onnx"] = b"x" + CONTENT[1:]
    done = pull(f"{files.url}/cats.onnx#sha256={right}")
    assert done.exit_code == 1 and f"'sha256:{right}'" in done.output
    assert no_folder(tmp_path)
    files.contents["/cats.onnx"] = CONTENT
    assert pull(f"{files.url}/cats.onnx#sha256={right}").exit_code == 0


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/cats.onnx#sha256=12", "64 hexadecimal digits"),
        ("/cats.onnx#md5=" + "0" * 32, "expected #sha256="),
        ("/dogs.onnx", "404"),
        ("/", "the source has a file ''"),
        ("/a/%2e%2e", "'..'"),
        ("/a/%2fetc", "'/etc'"),
        ("/a/x%0ay", "control characters"),
    ],
)
def test_address_that_cannot_be_used(pull, files, tmp_path, path, says):
    files.contents |= {"/": b"x", "/a/%2e%2e": b"x", "/a/%2fetc": b"x", "/a/x%0ay": b"x", "/a": b""}
    done = pull(files.url + path)
    assert done.exit_code == 1 and says in done.output, done.output
    assert no_folder(tmp_path)


@pytest.mark.parametrize("status", [401, 403, 410])
def test_refusals_of_the_server_are_shown(pull, files, status):
    files.status = status
    done = pull()
    assert done.exit_code == 1 and str(status) in done.output


def test_untrusted_certificate_is_refused(pull, monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    done = pull()
    assert done.exit_code == 1 and "UnknownIssuer" in done.output


def test_redirect_to_plain_http_is_not_followed(pull, files, tmp_path):
    asked = []

    class Plain(QuietHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT)

    with handlers_served(Plain) as url:
        files.redirect = f"{url}/cats.onnx"
        done = pull()
    assert done.exit_code == 1 and no_folder(tmp_path)
    assert not asked


def test_credentials_are_neither_stored_nor_shown(pull, files, tmp_path):
    secret = f"https://user:word@{files.url[8:]}/cats.onnx?X-Signature=hidden"
    assert pull(secret).exit_code == 0
    assert ("GET", "/cats.onnx?X-Signature=hidden", None) in files.seen
    lock = (tmp_path / "cats/.1.pull.lock").read_text()
    assert "hidden" not in lock and "word" not in lock
    assert pull(secret, "--verify").exit_code == 0
    files.status = 403
    done = pull(secret.replace("cats", "dogs"))
    assert done.exit_code == 1 and "hidden" not in done.output and "word" not in done.output


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ended_pull_goes_on(pull, files, tmp_path, number):
    files.pause_s = 0.05
    command = [sys.executable, "-m", "ksrv", "pull", f"{files.url}/cats.onnx"]
    process = subprocess.Popen([*command, str(tmp_path / "cats/1")])
    [part] = wait_for(lambda: [p for p in tmp_path.glob("cats/.1.pull/*/*") if p.stat().st_size])
    process.send_signal(number)
    assert process.wait(timeout=10) == -number
    size = part.stat().st_size
    assert 0 < size < len(CONTENT) and no_folder(tmp_path)
    files.pause_s = 0
    files.seen.clear()
    assert pull().exit_code == 0
    assert content_of(tmp_path) == CONTENT
    assert files.first_bytes()[-1] == size


def wait_for(found):
    end = time.monotonic() + 60
    while not (result := found()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return result


def test_two_pulls_into_one_folder_transfer_once(files, tmp_path):
    files.pause_s = 0.01
    command = [sys.executable, "-m", "ksrv", "pull", f"{files.url}/cats.onnx"]
    processes = [
        subprocess.Popen([*command, str(tmp_path / "cats/1")], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted("already" in text for text in said) == [False, True, True]
    assert content_of(tmp_path) == CONTENT
    assert sorted(path.name for path in (tmp_path / "cats").iterdir()) == [".1.pull.lock", "1"]


def test_part_of_another_revision_is_removed(pull, files, tmp_path):
    files.cut_after, files.cuts, files.ranges = 3_000_000, 1000, False
    assert pull().exit_code == 1
    files.contents["/cats.onnx"], files.etag, files.cuts = CONTENT[::-1], '"two"', 0
    assert pull().exit_code == 0
    assert content_of(tmp_path) == CONTENT[::-1]
    assert not (tmp_path / "cats/.1.pull").exists()
