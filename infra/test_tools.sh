#!/usr/bin/env bash
# Installs what tests and checks use and pip does not offer: ShellCheck, Prometheus and promtool, Chromium. As
# root, where there is apt-get; elsewhere, and for what cannot be had, the tests in question say that they were skipped.
set -euo pipefail

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
update() { [ -n "${updated:-}" ] || timeout 120 apt-get update -qq; updated=yes; }

install_shellcheck() { update && apt-get install -y -qq --no-install-recommends shellcheck; }

# The package would start a service as well: only its two programs are taken.
install_prometheus() {
  local folder
  folder=$(mktemp -d) && chmod 755 "$folder" && update \
    && (cd "$folder" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb .) \
    && install "$folder/usr/bin/prometheus" "$folder/usr/bin/promtool" /usr/local/bin/
  local ended=$?
  rm -rf "$folder"
  return $ended
}

install_chromium() { update && apt-get install -y -qq --no-install-recommends chromium-headless-shell; }

need() { # PROGRAM HOW
  command -v "$1" >/dev/null && return
  can_install && "$2" >/dev/null 2>&1 && return
  echo "test_tools: $1 could not be installed"
}

need shellcheck install_shellcheck
need prometheus install_prometheus
need chromium-headless-shell install_chromium
