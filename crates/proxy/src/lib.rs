//! What every proxy mode shares: the model of Services and endpoints.
