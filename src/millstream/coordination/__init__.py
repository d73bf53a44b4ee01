"""What every coordinator needs: journal, shards and timers; of groups it knows nothing."""
