# SPDX-License-Identifier: Apache-2.0
# Stubs of what devstack/plugin.sh uses of DevStack, for test_devstack.py. Each
# call is a line in $CALLS. Files of options are written as DevStack does, and
# as oslo.config reads them: a section may occur again, and a later value
# replaces an earlier one, unless the option has many values.

DEST=$STUBS/dest
DATA_DIR=$STUBS/data
STACK_USER=$(id -un)
NOVA_CONF_DIR=$STUBS/nova
NOVA_CONF=$NOVA_CONF_DIR/nova.conf
NOVA_FILTERS=ComputeFilter,ComputeCapabilitiesFilter
ENABLE_DEBUG_LOG_LEVEL=True
DATABASE_TYPE=mysql

record() {
    printf '%s\n' "$*" >>"$CALLS"
}

for name in die disable_service echo_summary openstack recreate_database \
    run_process setup_develop stop_process; do
    eval "$name() { record $name \"\$@\"; }"
done

die() {
    record die "$@"
    exit 1
}

enable_service() {
    record enable_service "$@"
    # As DevStack does with what local.conf disables.
    [[ ",$DISABLED_SERVICES," == *",$1,"* ]] || ENABLED_SERVICES+=",$1"
}

is_service_enabled() {
    [[ ",$ENABLED_SERVICES," == *",$1,"* ]]
}

iniset() {  # FILE SECTION OPTION VALUE
    printf '[%s]\n%s = %s\n' "$2" "$3" "$4" >>"$1"
}

iniset_multiline() {  # FILE SECTION OPTION VALUE...
    local value
    for value in "${@:4}"; do
        iniset "$1" "$2" "$3" "$value"
    done
}

iniget() {  # FILE SECTION OPTION
    awk -v section="[$2]" -v option="$3" '
        /^\[/ { inside = $0 == section }
        inside && $1 == option { sub(/^[^=]*= */, ""); value = $0 }
        END { print value }' "$1"
}

get_python_exec_prefix() {
    echo "$PROGRAMS"
}

get_transport_url() {
    echo "rabbit://stackrabbit:secret@127.0.0.1:5672/"
}

database_connection_url() {
    echo "sqlite:///$STUBS/$1.sqlite"
}

sudo() {
    record sudo "$@"
    "$@"
}
