#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154
# DevStack plugin of gpgpu_plugin. DevStack sources it with the arguments
#   stack pre-install | stack install | stack post-config | stack extra
#   unstack
#   clean

# Save trace setting
_XTRACE_GPGPU=$(set +o | grep xtrace)
set +o xtrace

# gpgpu_manage ARGUMENT...: as the user of the services
function gpgpu_manage {
    "$(get_python_exec_prefix)/gpgpu-manage" --config-file "$GPGPU_CONF" "$@"
}

# Beside Nova, since nova-compute, nova-scheduler and nova-api load parts of it.
# The extras mysql and postgresql are named like DATABASE_TYPE.
function install_gpgpu {
    setup_develop -bindep "$GPGPU_DIR" "$DATABASE_TYPE"
}

# nova-compute and nova-scheduler have the same user as gpgpu-conductor here.
function create_gpgpu_folders {
    sudo install -d -m 0755 -o "$STACK_USER" "$GPGPU_CONF_DIR" \
        "$GPGPU_KEYS_DIR" "$GPGPU_STATE_DIR"
}

# configure_gpgpu_rpc FILE: what all processes of the plugin need
function configure_gpgpu_rpc {
    iniset "$1" gpgpu transport_url "$(get_transport_url)"
    iniset "$1" gpgpu keys_path "$GPGPU_KEYS_DIR"
}

function configure_gpgpu_conductor {
    # It has the passwords of the database and the broker.
    rm -f "$GPGPU_CONF"
    install -m 0600 /dev/null "$GPGPU_CONF"
    iniset "$GPGPU_CONF" DEFAULT debug "$ENABLE_DEBUG_LOG_LEVEL"
    iniset "$GPGPU_CONF" database connection \
        "$(database_connection_url gpgpu)"
    configure_gpgpu_rpc "$GPGPU_CONF"
}

# Ours are the last ones, which ask gpgpu-conductor about few hosts then.
function configure_gpgpu_scheduler {
    local filters
    filters=$(iniget "$NOVA_CONF" filter_scheduler enabled_filters)
    filters=",${filters:-$NOVA_FILTERS},"
    filters=${filters//,NUMATopologyFilter,/,}
    filters=${filters//,GpuNUMATopologyFilter,/,}
    filters=${filters//,GpuFilter,/,}
    filters=${filters#,}GpuNUMATopologyFilter,GpuFilter
    iniset "$NOVA_CONF" filter_scheduler enabled_filters "$filters"
    iniset_multiline "$NOVA_CONF" filter_scheduler available_filters \
        nova.scheduler.filters.all_filters \
        gpgpu_plugin.scheduler_filters.all_filters
    iniset "$NOVA_CONF" filter_scheduler weight_classes \
        nova.scheduler.weights.all_weighers,gpgpu_plugin.scheduler_weights.all_weighers
}

# DevStack copies nova.conf to nova-cpu.conf when it starts nova-compute.
function configure_gpgpu_compute {
    iniset "$NOVA_CONF" DEFAULT compute_driver "$GPGPU_COMPUTE_DRIVER"
    iniset "$NOVA_CONF" gpgpu_compute state_path "$GPGPU_STATE_DIR"
    iniset "$NOVA_CONF" gpgpu_fake machine "$GPGPU_FAKE_MACHINE"
    iniset "$NOVA_CONF" gpgpu_sys_admin helper_command \
        "sudo nova-rootwrap $NOVA_CONF_DIR/rootwrap.conf privsep-helper --config-file $NOVA_CONF"
}

function configure_gpgpu {
    create_gpgpu_folders
    if is_service_enabled gpgpu-conductor; then
        configure_gpgpu_conductor
    fi
    configure_gpgpu_rpc "$NOVA_CONF"
    if is_service_enabled n-sch; then
        configure_gpgpu_scheduler
    fi
    if is_service_enabled n-cpu; then
        configure_gpgpu_compute
    fi
}

# The name of the host is [DEFAULT] host of its nova-compute.
function create_gpgpu_keys {
    local host
    host=$(iniget "$NOVA_CONF" DEFAULT host)
    # Keys of the database before are not valid in the new one.
    rm -f "$GPGPU_KEYS_DIR"/{master,operator,scheduler,host}.key
    gpgpu_manage key init
    gpgpu_manage key create operator devstack
    gpgpu_manage key create scheduler "$(hostname)"
    gpgpu_manage key create host "${host:-$(hostname)}"
}

function init_gpgpu {
    recreate_database gpgpu
    gpgpu_manage db sync
    create_gpgpu_keys
}

function start_gpgpu {
    run_process gpgpu-conductor \
        "$(get_python_exec_prefix)/gpgpu-conductor --config-file $GPGPU_CONF"
}

function stop_gpgpu {
    stop_process gpgpu-conductor
}

function create_gpgpu_flavor {
    gpgpu_manage variant import
    openstack --os-cloud devstack-admin flavor show "$GPGPU_FLAVOR" ||
        openstack --os-cloud devstack-admin flavor create \
            --ram 512 --vcpus 1 --disk 1 "$GPGPU_FLAVOR"
    gpgpu_manage --os-cloud devstack-admin flavor set "$GPGPU_FLAVOR" \
        --gpu "$GPGPU_FLAVOR_GPUS"
}

function cleanup_gpgpu {
    sudo rm -rf "$GPGPU_CONF_DIR" "$GPGPU_STATE_DIR"
}

if [[ "$1" == "stack" && "$2" == "install" ]]; then
    echo_summary "Installing gpgpu_plugin"
    install_gpgpu
elif [[ "$1" == "stack" && "$2" == "post-config" ]]; then
    echo_summary "Configuring gpgpu_plugin"
    configure_gpgpu
    if is_service_enabled gpgpu-conductor; then
        init_gpgpu
        # nova-compute starts after this phase, and reports to it at once.
        start_gpgpu
    elif [[ ! -r $GPGPU_KEYS_DIR/host.key ]]; then
        die $LINENO "$GPGPU_KEYS_DIR/host.key is missing: make it on the \
controller; see devstack/README.rst of gpgpu_plugin"
    fi
elif [[ "$1" == "stack" && "$2" == "extra" ]]; then
    if is_service_enabled gpgpu-conductor; then
        echo_summary "Creating variants of GPUs and flavor $GPGPU_FLAVOR"
        create_gpgpu_flavor
    fi
elif [[ "$1" == "unstack" ]]; then
    stop_gpgpu
elif [[ "$1" == "clean" ]]; then
    cleanup_gpgpu
fi

# Restore xtrace
$_XTRACE_GPGPU
