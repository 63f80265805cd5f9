<?php
error_log('something odd: ' . $_GET['what']);
echo 'said';
