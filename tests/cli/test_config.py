"""Where configuration comes from, which of it wins, and what is said about what cannot be used (spec: sandboxes)."""

from __future__ import annotations

from pathlib import Path

import pytest

from flux.app import config
from flux.core.errors import Code, FluxError


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def refusal(**arguments: object) -> str:
    with pytest.raises(FluxError) as caught:
        config.load(**arguments)  # type: ignore[arg-type]  # the cases below pass what the caller would
    assert caught.value.code is Code.INVALID
    return caught.value.message


def test_without_anything_the_defaults_hold(home: dict[str, str]) -> None:
    found = config.load(environment=home)
    assert found.state_dir == f"{home['HOME']}/.local/state/flux"
    assert found.sandbox.procbox.max_workspace_mib == 4096
    assert found.listen == "127.0.0.1:7788"


def test_the_first_file_that_exists_is_the_only_one(home: dict[str, str], tmp_path: Path) -> None:
    in_state = tmp_path / ".local/state/flux/flux.toml"
    write(in_state, "[speculation]\nttl_seconds = 10\n")
    by_variable = write(tmp_path / "b.toml", "[speculation]\nttl_seconds = 20\n")
    by_flag = write(tmp_path / "a.toml", "[sandbox]\nexec_timeout_seconds = 7\n")

    assert config.load(environment=home).speculation.ttl_seconds == 10
    assert config.load(environment={**home, "FLUX_CONFIG": by_variable}).speculation.ttl_seconds == 20
    flagged = config.load(file=by_flag, environment={**home, "FLUX_CONFIG": by_variable})
    assert (flagged.speculation.ttl_seconds, flagged.sandbox.exec_timeout_seconds) == (3600, 7)


def test_the_environment_overrides_the_file_and_flags_override_both(home: dict[str, str], tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", 'state_dir = "/from/file"\n[sandbox.procbox]\nmax_workspace_mib = 1\npids = 99\n')
    environment = {**home, "FLUX_SANDBOX__PROCBOX__MAX_WORKSPACE_MIB": "2"}
    found = config.load(file=file, environment=environment)
    assert (found.sandbox.procbox.max_workspace_mib, found.sandbox.procbox.pids) == (2, 99)
    assert found.state_dir == "/from/file"
    environment["FLUX_STATE_DIR"] = "/from/variable"
    assert config.load(file=file, environment=environment).state_dir == "/from/variable"
    assert config.load(state_directory="/from/flag", file=file, environment=environment).state_dir == "/from/flag"


def test_values_of_every_type_come_from_variables(home: dict[str, str]) -> None:
    found = config.load(
        environment={
            **home,
            "FLUX_SANDBOX__PROCBOX__CPUS": "1.5",
            "FLUX_SANDBOX__PROCBOX__MEMORY_MIB": "512",
            "FLUX_SANDBOX__EGRESS_ALLOW_DOMAINS": "a.example, b.example",
            "FLUX_SPECULATION__COPY_ENGINE": "copy",
            "FLUX_LISTEN": "",
        }
    )
    assert (found.sandbox.procbox.cpus, found.sandbox.procbox.memory_mib) == (1.5, 512)
    assert found.sandbox.egress_allow_domains == ("a.example", "b.example")
    assert found.speculation.copy_engine == "copy"
    assert found.listen == "127.0.0.1:7788"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[sandbox.procbox]\nmax_worspace_mib = 1",
            "unknown key sandbox.procbox.max_worspace_mib; the nearest known key is sandbox.procbox.max_workspace_mib",
        ),
        ("[speculations]\nttl_seconds = 1", "unknown key speculations; the nearest known key is speculation"),
        ('[nodes]\nlisten = "x"', "unknown key nodes; the nearest known key is node"),
        ("state_dir", "not valid TOML"),
        ("sandbox = 1", "sandbox is a section; write [sandbox]"),
        ("state_dir = 3", "state_dir must be an absolute path"),
        ('state_dir = "relative"', "state_dir must be an absolute path"),
        ("[sandbox.procbox]\npids = '9'", "expected int, got str - at sandbox.procbox.pids"),
        ("[sandbox.procbox]\npids = 0", "expected int >= 8 - at sandbox.procbox.pids"),
        ("[speculation]\nttl_seconds = 86401", "expected int <= 86400"),
        ('[speculation]\ncopy_engine = "cp"', "invalid enum value 'cp' - at speculation.copy_engine"),
        ('listen = "nowhere"', "at listen"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_place(
    home: dict[str, str], tmp_path: Path, text: str, said: str
) -> None:
    file = write(tmp_path / "bad.toml", text)
    message = refusal(file=file, environment=home)
    assert said in message
    assert file in message


@pytest.mark.parametrize("place", ["absent.toml", "."])
def test_a_file_that_cannot_be_read_is_an_error(home: dict[str, str], tmp_path: Path, place: str) -> None:
    assert "cannot read the configuration file" in refusal(file=str(tmp_path / place), environment=home)


def test_a_file_that_is_not_text_is_an_error(home: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(b"listen = '\xff'")
    assert "not valid TOML" in refusal(file=str(file), environment=home)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("FLUX_SANDBOX__PROCBOX__MAX_WORKSPACE", "1", "FLUX_SANDBOX__PROCBOX__MAX_WORKSPACE_MIB"),
        ("FLUX_STATEDIR", "/x", "the nearest is FLUX_STATE_DIR"),
        ("FLUX_SANDBOX__PROCBOX__PIDS", "many", "FLUX_SANDBOX__PROCBOX__PIDS: expected int"),
        ("FLUX_SANDBOX__PROCBOX__PIDS", "1", "expected int >= 8"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(home: dict[str, str], name: str, value: str, said: str) -> None:
    message = refusal(environment={**home, name: value})
    assert name in message
    assert said in message


def test_variables_of_others_with_the_same_prefix_are_left_alone(home: dict[str, str]) -> None:
    assert config.load(environment={**home, "FLUX_SYSTEM_NAMESPACE": "x"}) == config.load(environment=home)


def test_every_key_has_a_variable_of_its_own() -> None:
    names = [config.variable(key) for key in config.leaves()]
    assert len(set(names)) == len(names)
    assert "FLUX_SANDBOX__PROCBOX__MAX_WORKSPACE_MIB" in names


class TestStateDirectory:
    def test_follows_xdg_only_where_it_is_absolute(self, tmp_path: Path) -> None:
        environment = {"HOME": "/home/a", "XDG_STATE_HOME": str(tmp_path)}
        assert config.load(environment=environment).state_dir == f"{tmp_path}/flux"
        environment["XDG_STATE_HOME"] = "relative"
        assert config.load(environment=environment).state_dir == "/home/a/.local/state/flux"

    def test_asks_the_user_database_where_home_is_empty(self) -> None:
        import os
        import pwd

        home = pwd.getpwuid(os.geteuid()).pw_dir
        assert config.default_state_directory({"HOME": ""}) == f"{home}/.local/state/flux"

    def test_a_home_that_nobody_knows_is_an_error_that_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import os

        monkeypatch.setattr(os, "geteuid", lambda: 4_000_123)
        assert "name one with --state-dir DIR" in refusal(environment={})
        assert config.load(state_directory="/x", environment={}).state_dir == "/x"

    def test_a_flag_may_be_relative_and_begin_with_a_tilde(
        self, home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert config.load(state_directory="here", environment=home).state_dir == str(tmp_path / "here")
        assert config.load(state_directory="~/there", environment=home).state_dir == str(tmp_path / "there")
