"""When would each job have finished if the cluster had been shared equally at every instant?"""
