"""The server and the key of a client that is given neither: as the command line has them."""

from dataclasses import dataclass
from pathlib import Path

from nightshift.client.answers import check_api_key, check_base_url
from nightshift.errors import ConfigurationError
from nightshift.process.settings import ClientSettings, DataSettings
from nightshift.tenants.keys import API_KEY_FILE


@dataclass(frozen=True)
class Connection:
    """`base_url` has no `/v1` at its end."""

    base_url: str
    headers: dict[str, str]


def connection(base_url: str | None, api_key: str | None) -> Connection:
    """The given server and key; else NIGHTSHIFT_BASE_URL, and NIGHTSHIFT_API_KEY or the data directory's key.

    Raises ConfigurationError for an invalid URL or key, and where there is no key.
    """
    base_url = ClientSettings().base_url if base_url is None else base_url
    check_base_url(base_url)
    api_key = _own_key() if api_key is None else api_key
    check_api_key(api_key)
    return Connection(base_url.rstrip("/").removesuffix("/v1"), {"authorization": f"Bearer {api_key}"})


def _own_key() -> str:
    data_dir = DataSettings().data_dir.expanduser().absolute()
    return ClientSettings().api_key or _key_in_file(data_dir / API_KEY_FILE)


def _key_in_file(path: Path) -> str:
    try:
        return path.read_text().strip()
    except PermissionError as error:
        raise ConfigurationError(
            f"the API key in {path} is for another user of this machine: set NIGHTSHIFT_API_KEY to a key of "
            "yours, which `nightshift keys create` makes for the service's user",
            param="NIGHTSHIFT_API_KEY",
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"no API key: start the service with `nightshift up`, which leaves one in {path} (there is none "
            "yet); for a service elsewhere set NIGHTSHIFT_API_KEY, or NIGHTSHIFT_DATA_DIR to its directory",
            param="NIGHTSHIFT_API_KEY",
        ) from error
