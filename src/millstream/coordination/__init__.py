"""What every coordinator needs: journal, shards, timers, tickets; of groups it knows nothing."""
