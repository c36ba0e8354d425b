"""Makes a container of an Azurite server: container.py PORT NAME. The account and its key are those that every Azurite has."""

import base64
import email.utils
import hashlib
import hmac
import sys
import urllib.error
import urllib.request

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

port, name = sys.argv[1:]
headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
signed = "PUT" + "\n" * 12 + "".join(f"{key}:{value}\n" for key, value in sorted(headers.items()))
signed += f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
code = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
headers |= {"Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(code).decode()}", "Content-Length": "0"}
url = f"http://127.0.0.1:{port}/{ACCOUNT}/{name}?restype=container"
try:
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers))
except urllib.error.HTTPError as error:
    if error.code != 409:  # it is there
        raise
