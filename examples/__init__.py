"""Example programs that use Millstream."""
