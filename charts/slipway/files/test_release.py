"""`helm test`: whether a gateway of the release lists its models, or requires a key. Usage: test_release.py URL"""

import ssl
import sys
import time
import urllib.error
import urllib.request

PATIENCE_S, PAUSE_S, TIMEOUT_S = 60, 2, 5
ANSWERS = (200, 401, 403)


def status(url: str) -> int:
    """The status of the response. Whose certificate it is does not matter here, only that a gateway answers.

    Raises:
        OSError: there is no response.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=context) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def wants_certificate(error: OSError) -> bool:
    """Whether a gateway refuses a client without a certificate: it answers, so it is there."""
    return "CERTIFICATE_REQUIRED" in str(error).upper()


def main(url: str) -> int:
    until_s, last = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < until_s:
        try:
            last = f"status {(code := status(url))}"
            if code in ANSWERS:
                print(f"{url}: {last}: a gateway answers")
                return 0
        except OSError as error:
            last = str(error)
            if wants_certificate(error):
                print(f"{url}: a gateway answers, and wants a certificate of its clients")
                return 0
        print(f"{url}: {last}", flush=True)
        time.sleep(PAUSE_S)
    print(f"{url}: no gateway answered within {PATIENCE_S} s; the last result: {last}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[-1]))
