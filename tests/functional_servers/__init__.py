# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL, MariaDB and RabbitMQ with the conductor when they fail or race.

What these tests do concerns a whole server, or is judged by time, so they run
one after another.
"""
