"""Ask a registry which image a tag is now, by the OCI distribution protocol."""

from __future__ import annotations

import hashlib
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from email.message import Message
from typing import NoReturn, TypeVar

import msgspec

from toolkit.errors import (
    CommandFailedError,
    ForbiddenError,
    MalformedInputError,
    UnknownImageError,
)
from toolkit.images.registry import web
from toolkit.images.registry.auth import NGC_KEY, Credentials
from toolkit.images.registry.references import Reference, is_loopback

_KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_PATIENCE = 30.0  # seconds for one answer
_PAGES, _PAGE = 20, 1000  # of a list of tags
_MOST = 16 << 20  # bytes of an answer; a thousand tags have some kilobytes
_PROOF = re.compile(r"[\x21-\x7e]{1,65536}\Z")  # characters that a header can have
_PARAMETER = re.compile(r'(?<!\w)(\w{1,64})="([^"]*)"')


@dataclass
class _Answer:
    status: int
    headers: Message
    body: bytes
    url: str  # that answered, which may be another than was asked


class _Tags(msgspec.Struct):
    """A page of a list of tags; registries write null where they have none."""

    tags: list[str] | None = None


class _Token(msgspec.Struct):
    """The answer of a service that issues tokens."""

    token: str = ""
    access_token: str = ""


def find_digest(reference: Reference, credentials: Credentials | None) -> str:
    """Return the digest that a tag has now, or the named digest if the registry has it.

    Raises:
        UnknownImageError: the registry has no such repository or tag; names the nearest tags.
        ForbiddenError: the registry requires a login, or another login.
        CommandFailedError: the registry does not answer, or answers with something else.
        MalformedInputError: the answer does not follow the protocol.
    """
    session = Session(reference, credentials)
    manifest, kinds = f"manifests/{reference.digest or reference.tag}", ", ".join(_KINDS)
    answer = session.request("HEAD", manifest, accept=kinds)
    digest = answer.headers.get("docker-content-digest", "")
    if answer.status == 200 and not digest:  # a registry should name it there, but need not
        answer = session.request("GET", manifest, accept=kinds)
        digest = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
    if answer.status == 200 and re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        return digest
    if answer.status in (401, 403):
        raise _login_needed(reference, credentials)
    if answer.status == 404:
        _unknown(reference, session)
    raise _strange(
        reference,
        f"it answers {answer.status}" if answer.status != 200 else "its answer has no digest",
    )


def _unknown(reference: Reference, session: Session) -> NoReturn:
    known = session.tags()
    wanted = reference.digest or reference.tag
    if not known:
        raise UnknownImageError(
            f"the registry {reference.registry} has no {reference.path}:{wanted}",
            place=str(reference),
            next_step="compare the name with the registry's catalogue, or see `toolkit image list`",
        )
    last = ", ".join(known[-8:])
    kind = "image with the digest" if reference.digest else "tag"
    raise UnknownImageError(
        f"{reference.repository} has no {kind} {wanted}",
        place=str(reference),
        choices=known,
        value=reference.tag or None,
        next_step=f"it has {len(known)} tags, among them {last}"
        if len(known) > 8
        else f"it has {last}",
    )


def _login_needed(reference: Reference, credentials: Credentials | None) -> ForbiddenError:
    registry = reference.registry
    steps = (
        f"docker login {registry}, or: apptainer registry login --username NAME docker://{registry}"
    )
    if registry == "nvcr.io":
        steps = (
            f"export {NGC_KEY}=<your key> (from ngc.nvidia.com, Setup), or: "
            "docker login nvcr.io --username '$oauthtoken'"
        )
    wants = (
        f"does not accept the login from {credentials.origin}"
        if credentials
        else "requires a login"
    )
    return ForbiddenError(
        f"the registry {registry} {wants} for {reference.path}, or does not have it",
        place=str(reference),
        next_step=steps,
    )


def _strange(reference: Reference, reason: str) -> CommandFailedError:
    registry = reference.registry
    return CommandFailedError(
        f"the registry {registry} does not report which image "
        f"{reference.path}:{reference.tag or reference.digest} is: {reason}",
        place=str(reference),
        next_step=f"try again; through a mirror: TOOLKIT_REGISTRIES={registry}=MIRROR; "
        "without a network: `archive` in the recipe's [base]",
    )


_AnyAnswer = TypeVar("_AnyAnswer", bound=msgspec.Struct)


class Session:
    """Requests to one repository. A token is requested once, when the registry asks for it."""

    def __init__(self, reference: Reference, credentials: Credentials | None) -> None:
        self._reference, self._credentials, self._authorization = reference, credentials, ""
        scheme = "http" if is_loopback(reference.registry) else "https"
        host = "registry-1.docker.io" if reference.registry == "docker.io" else reference.registry
        self._root = f"{scheme}://{host}/v2/{reference.path}/"
        self._opener = web.make_opener(proxies=not is_loopback(reference.registry))

    def request(self, method: str, path: str, *, accept: str = "application/json") -> _Answer:
        """Send a request, and send it again with a login if the registry itself requires one."""
        answer = self._send(method, self._root + path, accept)
        # A host that the registry redirects to must not choose where the login is sent.
        own = web.parse_origin(answer.url) == web.parse_origin(self._root)
        if answer.status == 401 and own and not self._authorization:
            # Of several ways to log in, the token is tried, as by Docker's own client.
            challenges = answer.headers.get_all("www-authenticate", [])
            by_token = [text for text in challenges if text.lower().startswith("bearer ")]
            self._authorization = self._authorize((by_token or challenges or [""])[0])
            if self._authorization:
                answer = self._send(method, self._root + path, accept)
        return answer

    def tags(self) -> tuple[str, ...]:
        """Return every tag of the repository. Return none if the registry does not list them."""
        names: list[str] = []
        query = f"tags/list?n={_PAGE}"
        for _ in range(_PAGES):
            answer = self.request("GET", query)
            if answer.status != 200:
                break
            names += self.decoded(answer, _Tags).tags or ()
            following = re.search(r"[?&](last=[^&>]+)", answer.headers.get("link", ""))
            if not following:
                break
            query = f"tags/list?n={_PAGE}&{following[1]}"
        return tuple(sorted(names))

    def _authorize(self, challenge: str) -> str:
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            return self._credentials.basic if self._credentials and self._credentials.secret else ""
        if kind.lower() != "bearer":
            return ""
        parameters = dict(_PARAMETER.findall(rest))
        realm = parameters.pop("realm", "")
        if not realm.startswith("https://") and not self._is_local(realm):
            return ""  # a password never goes over a connection that others can read
        parameters.setdefault("scope", f"repository:{self._reference.path}:pull")
        answer = self._token(realm, parameters)
        if answer.status != 200:
            return ""
        given = self.decoded(answer, _Token)
        token = given.token or given.access_token
        if token and not _PROOF.match(token):
            raise self._malformed(answer, "its token has characters that no header can have")
        return f"Bearer {token}" if token else ""

    def _is_local(self, realm: str) -> bool:
        """Return whether both the registry and its token service are on this machine.

        For a registry elsewhere, "localhost" would be any program that listens on this machine.
        """
        try:
            return is_loopback(self._reference.registry) and is_loopback(
                urllib.parse.urlsplit(realm).netloc
            )
        except ValueError:
            return False

    def decoded(self, answer: _Answer, model: type[_AnyAnswer]) -> _AnyAnswer:
        """Decode the body of an answer.

        Raises:
            MalformedInputError: the body is not of this model.
        """
        try:
            return msgspec.json.decode(answer.body, type=model)
        except (ValueError, RecursionError) as error:
            raise self._malformed(answer, str(error)) from None

    def _malformed(self, answer: _Answer, how: str) -> MalformedInputError:
        registry = self._reference.registry
        return MalformedInputError(
            f"the registry {registry} does not follow the registry protocol: {how}",
            place=answer.url.partition("?")[0],
            next_step=f"see the answer: curl -i {answer.url.partition('?')[0]}",
        )

    def _token(self, realm: str, parameters: dict[str, str]) -> _Answer:
        known = self._credentials
        if known and known.token:
            form = {
                **parameters,
                "grant_type": "refresh_token",
                "refresh_token": known.token,
                "client_id": "toolkit",
            }
            return self._send(
                "POST", realm, "application/json", body=urllib.parse.urlencode(form).encode()
            )
        url = f"{realm}{'&' if '?' in realm else '?'}{urllib.parse.urlencode(parameters)}"
        return self._send(
            "GET", url, "application/json", authorization=known.basic if known else ""
        )

    def _send(
        self,
        method: str,
        url: str,
        accept: str,
        *,
        body: bytes | None = None,
        authorization: str | None = None,
    ) -> _Answer:
        headers = {"Accept": accept, "User-Agent": "toolkit"}
        proof = self._authorization if authorization is None else authorization
        try:
            request = urllib.request.Request(url, data=body, method=method, headers=headers)
            if proof and body is None:
                request.add_unredirected_header("Authorization", proof)
            return self._answer(request)
        except MalformedInputError as error:
            error.place = url.partition("?")[0]
            raise
        except web.FAILURES as error:
            reason = getattr(error, "reason", None) or error
            raise _strange(self._reference, f"no connection ({reason})") from None

    def _answer(self, request: urllib.request.Request) -> _Answer:
        try:
            response = self._opener.open(request, timeout=_PATIENCE)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            data = web.read_body(response, _MOST)
            return _Answer(response.status, response.headers, data, response.geturl())
