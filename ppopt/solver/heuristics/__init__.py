"""Methods that find schedules, without a proof."""
