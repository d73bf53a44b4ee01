"""OAuth tokens: the keys that sign them, and their validation.

Imported only by a broker that has OAUTHBEARER, because the import takes long.
"""
