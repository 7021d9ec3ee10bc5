"""Methods that find schedules without a proof, and the state that they share."""
