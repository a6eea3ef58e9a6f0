"""What a member does about links and nodes that are lost, hang, or send impossible things."""
