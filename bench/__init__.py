# SPDX-License-Identifier: Apache-2.0
"""The plugin beside its peers: ``python -m bench``."""

import logging
import warnings

# What other libraries say is no result. Each process of a benchmark imports
# this first.
warnings.simplefilter('ignore')
logging.getLogger('amqp').setLevel(logging.ERROR)
